#include "espalier/frontend/onnx_sizes.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/words.h"
#include "espalier/frontend/onnx_rules.h"

namespace espalier {
namespace onnx {
namespace {

// -- Elements ---------------------------------------------------------------------------------------

// Element i of a tensor whose elements are known, stretched to `count` of them: only a single one is.
template <class T>
const T& stretched(const std::vector<T>& elements, std::size_t i) {
  return elements.size() == 1 ? elements.front() : elements[i];
}

std::optional<SizeExpr> combined(std::string_view type, const SizeExpr& a, const SizeExpr& b) {
  const auto truth = [](bool value) { return SizeExpr(value ? 1 : 0); };
  const auto ordered = [&](const auto& before) -> std::optional<SizeExpr> {
    const auto of_a = values_of(a), of_b = values_of(b);
    if (!of_a || !of_b) return std::nullopt;
    const bool first = before((*of_a)[0], (*of_b)[0]);
    for (std::size_t i = 1; i < kProbes.size(); ++i)
      if (before((*of_a)[i], (*of_b)[i]) != first) return std::nullopt;
    return truth(first);
  };
  if (type == "Add" || type == "Sum") return simplest(a + b);
  if (type == "Sub") return simplest(a - b);
  if (type == "Mul" || type == "And") return simplest(a * b);
  if (type == "Div") return is(b, 0) ? std::nullopt : std::optional(quotient(a, b));
  if (type == "Mod") return is(b, 0) ? std::nullopt : std::optional(simplest(mod(a, b)));
  if (type == "Max" || type == "Or") return simplest(max(a, b));
  if (type == "Min") return simplest(min(a, b));
  if (type == "Equal") return ordered(std::equal_to<>());
  if (type == "Less") return ordered(std::less<>());
  if (type == "LessOrEqual") return ordered(std::less_equal<>());
  if (type == "Greater") return ordered(std::greater<>());
  if (type == "GreaterOrEqual") return ordered(std::greater_equal<>());
  return std::nullopt;
}

std::optional<double> combined(std::string_view type, double a, double b) {
  if (type == "Add") return a + b;
  if (type == "Sub") return a - b;
  if (type == "Mul") return a * b;
  if (type == "Div") return a / b;
  if (type == "Pow") return std::pow(a, b);
  return std::nullopt;
}

// Elements of an operator on two tensors of which one may be a single number.
template <class T>
std::optional<std::vector<T>> combine_elements(std::string_view type, const std::optional<std::vector<T>>& a,
                                               const std::optional<std::vector<T>>& b) {
  if (!a || !b || (a->size() != b->size() && a->size() != 1 && b->size() != 1)) return std::nullopt;
  if (a->empty() || b->empty()) return std::nullopt;
  std::vector<T> result;
  for (std::size_t i = 0; i < std::max(a->size(), b->size()); ++i) {
    const std::optional<T> element = combined(type, stretched(*a, i), stretched(*b, i));
    if (!element) return std::nullopt;
    result.push_back(*element);
  }
  return result;
}

// -- Families of operators --------------------------------------------------------------------------

void same_value(OnnxCall& call) {
  like_first(call);
  keep_elements(call);
}

void truth_of_first(OnnxCall& call) {
  call.give(0, DType::kBool, call.sizes(0));
  if (call.node.type != "Not" || !call.in(0).integers) return;
  std::vector<SizeExpr> turned;
  for (const SizeExpr& each : *call.in(0).integers) {
    if (!each.constant()) return;
    turned.emplace_back(is(each, 0) ? 1 : 0);
  }
  call.outputs[0].integers = std::move(turned);
}

void rounded(OnnxCall& call) {
  like_first(call);
  if (!call.in(0).reals) return;
  std::vector<double> result = *call.in(0).reals;
  for (double& each : result)
    each = call.node.type == "Floor"  ? std::floor(each)
           : call.node.type == "Ceil" ? std::ceil(each)
                                      : std::nearbyint(each);
  call.outputs[0].reals = std::move(result);
}

void negated(OnnxCall& call) {
  like_first(call);
  if (!call.in(0).integers) return;
  std::vector<SizeExpr> result;
  for (const SizeExpr& each : *call.in(0).integers) result.push_back(simplest(SizeExpr(0) - each));
  call.outputs[0].integers = std::move(result);
}

void elementwise(OnnxCall& call, std::optional<DType> dtype) {
  Sizes sizes = call.sizes(0);
  if (call.opset >= 7)  // before, the second had to be stretched along named dimensions
    for (std::size_t i = 1; i < call.input_count(); ++i) sizes = broadcast(sizes, call.sizes(i));
  call.give(0, dtype.value_or(call.in(0).dtype), std::move(sizes));
  if (call.outputs.empty()) return;
  auto& integers = call.outputs[0].integers = call.in(0).integers;
  auto& reals = call.outputs[0].reals = call.in(0).reals;
  for (std::size_t i = 1; i < call.input_count(); ++i) {
    integers = combine_elements(call.node.type, integers, call.in(i).integers);
    reals = combine_elements(call.node.type, reals, call.in(i).reals);
  }
}

void arithmetic(OnnxCall& call) {
  elementwise(call, std::nullopt);
}

void comparison(OnnxCall& call) {
  elementwise(call, DType::kBool);
}

void where(OnnxCall& call) {
  call.give(0, call.in(1).dtype, broadcast(broadcast(call.sizes(0), call.sizes(1)), call.sizes(2)));
  const auto &chosen = call.in(0).integers, &yes = call.in(1).integers, &no = call.in(2).integers;
  if (!chosen || !yes || !no) return;
  const std::size_t count = std::max({chosen->size(), yes->size(), no->size()});
  std::vector<SizeExpr> result;
  for (std::size_t i = 0; i < count; ++i) {
    for (const auto* const each : {&*chosen, &*yes, &*no})
      if (each->empty() || (each->size() != 1 && each->size() != count)) return;
    const SizeExpr& truth = stretched(*chosen, i);
    if (!truth.constant()) return;
    result.push_back(stretched(is(truth, 0) ? *no : *yes, i));
  }
  call.outputs[0].integers = std::move(result);
}

void cast(OnnxCall& call) {
  const std::optional<DType> dtype =
      call.node.type == "CastLike" ? std::optional(call.in(1).dtype) : onnx_dtype(call.node.integer("to", 0));
  if (!dtype) throw Unknown();
  call.give(0, *dtype, call.sizes(0));
  const OnnxValue& from = call.in(0);
  if (is_floating_point(*dtype) == is_floating_point(from.dtype)) {
    keep_elements(call);
  } else if (from.reals) {
    std::vector<SizeExpr> whole;
    for (const double each : *from.reals) {
      if (!(std::abs(each) < 9e15)) return;
      whole.emplace_back(static_cast<std::int64_t>(each));
    }
    call.outputs[0].integers = std::move(whole);
  } else if (const auto numbers = call.numbers(0)) {
    call.outputs[0].reals = std::vector<double>(numbers->begin(), numbers->end());
  }
}

// -- Values from nowhere ----------------------------------------------------------------------------

void constant(OnnxCall& call) {
  const OnnxNode& node = call.node;
  if (const OnnxAttribute* const value = node.find("value"); value != nullptr && value->tensor) {
    const auto known = onnx_constant(*value->tensor);
    call.outputs[0] = known ? *known : throw Unknown();
  } else if (const OnnxAttribute* const one = node.find("value_int"); one != nullptr && one->integer) {
    call.give(0, DType::kI64, {});
    call.outputs[0].integers.emplace(1, SizeExpr(*one->integer));
  } else if (const auto several = node.integers("value_ints")) {
    call.give(0, DType::kI64, {static_cast<std::int64_t>(several->size())});
    call.outputs[0].integers = Sizes(several->begin(), several->end());
  } else if (const OnnxAttribute* const real = node.find("value_float"); real != nullptr && real->real) {
    call.give(0, DType::kF32, {});
    call.outputs[0].reals.emplace(1, *real->real);
  } else if (const OnnxAttribute* const reals = node.find("value_floats"); reals != nullptr) {
    call.give(0, DType::kF32, {static_cast<std::int64_t>(reals->reals.size())});
    call.outputs[0].reals = reals->reals;
  } else {
    throw Unknown();
  }
}

void constant_of_shape(OnnxCall& call) {
  const OnnxAttribute* const value = call.node.find("value");
  OnnxValue one{.dtype = DType::kF32, .reals = std::vector<double>{0}};
  if (value != nullptr && value->tensor) {
    const auto known = onnx_constant(*value->tensor);
    one = known ? *known : throw Unknown();
  }
  call.give(0, one.dtype, shape_input(call, 0));
  const auto count = product(call.outputs[0].sizes).constant();
  if (!count || *count > kMostOnnxConstants) return;
  const auto times = static_cast<std::size_t>(std::max<std::int64_t>(*count, 0));
  if (one.integers && one.integers->size() == 1)
    call.outputs[0].integers.emplace(times, one.integers->front());
  if (one.reals && one.reals->size() == 1) call.outputs[0].reals.emplace(times, one.reals->front());
}

void range(OnnxCall& call) {
  const auto element = [&](std::size_t i) -> SizeExpr {
    if (const auto& whole = call.in(i).integers; whole && whole->size() == 1) return whole->front();
    const auto& real = call.in(i).reals;
    if (real && real->size() == 1 && real->front() == std::floor(real->front()) &&
        std::abs(real->front()) < 9e15)
      return static_cast<std::int64_t>(real->front());
    throw Unknown();
  };
  const SizeExpr from = element(0), to = element(1), step = element(2);
  if (!step.constant() || *step.constant() == 0) throw Unknown();
  const std::int64_t by = *step.constant();
  const SizeExpr span = by > 0 ? to - from : from - to;
  const SizeExpr count = simplest(max(floor_div(span + (std::abs(by) - 1), std::abs(by)), 0));
  call.give({count});
  if (!is_floating_point(call.in(0).dtype) && count.constant() && *count.constant() <= kMostOnnxConstants &&
      from.constant()) {
    std::vector<SizeExpr> elements;
    for (std::int64_t i = 0; i < *count.constant(); ++i) elements.emplace_back(*from.constant() + i * by);
    call.outputs[0].integers = std::move(elements);
  }
}

void random_of_shape(OnnxCall& call) {
  const auto sizes = call.node.integers("shape");
  const auto dtype = onnx_dtype(call.node.integer("dtype", 1));
  if (!sizes || !dtype) throw Unknown();
  call.give(0, *dtype, Sizes(sizes->begin(), sizes->end()));
}

void like_first_of_type(OnnxCall& call) {
  const std::int64_t element = call.node.integer("dtype", 0);
  const auto dtype = onnx_dtype(element);
  call.give(0, dtype.value_or(call.in(0).dtype), call.sizes(0));
}

void one_hot(OnnxCall& call) {
  const auto depth = call.numbers(1);
  if (!depth || depth->size() != 1 || depth->front() < 0) throw Unknown();
  Sizes result = call.sizes(0);
  const std::size_t axis = call.axis(-1, result.size() + 1);
  result.insert(result.begin() + static_cast<std::ptrdiff_t>(axis), SizeExpr(depth->front()));
  call.give(0, call.in(2).dtype, std::move(result));
}

// -- Reductions -------------------------------------------------------------------------------------

Sizes reduced(const Sizes& sizes, const std::vector<bool>& gone, bool keeps) {
  Sizes result;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (!gone[i]) result.push_back(sizes[i]);
    if (gone[i] && keeps) result.emplace_back(1);
  }
  return result;
}

void reduction(OnnxCall& call) {
  const auto axes = call.list("axes", 1);
  const bool none = !axes || axes->empty();
  if (none && call.node.integer("noop_with_empty_axes", 0) != 0) {
    same_value(call);
    return;
  }
  std::vector<bool> gone(call.rank(0), none);
  if (!none)
    for (const std::int64_t axis : *axes) gone[OnnxCall::dim_of(axis, call.rank(0))] = true;
  call.give(reduced(call.sizes(0), gone, call.node.integer("keepdims", 1) != 0));
  const auto& known = call.in(0).integers;
  if (!known || known->empty() || call.rank(0) != 1 || !gone[0]) return;
  const std::string_view type = call.node.type == "ReduceProd"  ? "Mul"
                                : call.node.type == "ReduceSum" ? "Add"
                                : call.node.type == "ReduceMax" ? "Max"
                                : call.node.type == "ReduceMin" ? "Min"
                                                                : "";
  std::optional<SizeExpr> all = known->front();
  for (std::size_t i = 1; i < known->size() && all; ++i) all = combined(type, *all, (*known)[i]);
  if (all && !type.empty()) call.outputs[0].integers.emplace(1, *all);
}

void index_of_extreme(OnnxCall& call) {
  std::vector<bool> gone(call.rank(0), false);
  gone[call.axis(0, call.rank(0))] = true;
  call.give(0, DType::kI64, reduced(call.sizes(0), gone, call.node.integer("keepdims", 1) != 0));
}

void top_k(OnnxCall& call) {
  Sizes result = call.sizes(0);
  const std::int64_t attribute = call.node.integer("k", -1);
  const Sizes count = attribute >= 0 ? Sizes{attribute} : shape_input(call, 1);
  if (count.size() != 1) throw Unknown();
  result[call.axis(-1, result.size())] = count.front();
  call.give(1, DType::kI64, result);
  call.give(std::move(result));
}

void loss(OnnxCall& call) {
  const bool each = call.node.text("reduction") == "none";
  call.give(0, call.in(0).dtype, each ? call.sizes(1) : Sizes());
  call.give(1, call.in(0).dtype, call.sizes(0));  // the logarithms of the probabilities
}

// -- Whole numbers for real ones --------------------------------------------------------------------

void quantize(OnnxCall& call) {
  const auto named = onnx_dtype(call.node.integer("output_dtype", 0));
  call.give(0, call.has(2) ? call.in(2).dtype : named.value_or(DType::kU8), call.sizes(0));
}

void quantize_by_range(OnnxCall& call) {
  call.give(0, DType::kU8, call.sizes(0));
  call.give(1, DType::kF32, {});
  call.give(2, DType::kU8, {});
}

void dequantize(OnnxCall& call) {
  call.give(0, call.in(1).dtype, call.sizes(0));
}

void grid_sample(OnnxCall& call) {
  if (call.rank(1) != call.rank(0) || call.rank(0) < 3) throw Unknown();
  Sizes result{call.size(0, 0), call.size(0, 1)};
  result.insert(result.end(), call.sizes(1).begin() + 1, call.sizes(1).end() - 1);
  call.give(std::move(result));
}

void roi_align(OnnxCall& call) {
  call.give({call.size(1, 0), call.size(0, 1), call.node.integer("output_height", 1),
             call.node.integer("output_width", 1)});
}

// -- The table --------------------------------------------------------------------------------------

using Rule = void (*)(OnnxCall&);
struct Row {
  std::string_view names;
  Rule rule;
};

constexpr Row kOnnxRules[] = {
    {"Abs Acos Acosh Asin Asinh Atan Atanh Cos Cosh Erf Exp Log Sin Sinh Sqrt Tan Tanh Reciprocal Sign "
     "Sigmoid Relu LeakyRelu PRelu Elu Selu Celu ThresholdedRelu HardSigmoid HardSwish Softplus Softsign "
     "Mish Gelu FastGelu BiasGelu QuickGelu Swish Shrink Clip Softmax LogSoftmax Hardmax LpNormalization "
     "MeanVarianceNormalization LRN InstanceNormalization GroupNormalization RMSNormalization "
     "SimplifiedLayerNormalization CumSum Trilu BitwiseNot ReverseSequence Scatter ScatterElements ScatterND "
     "RotaryEmbedding CumProd ImageScaler TensorScatter",
     like_first},
    {"Identity", same_value},
    {"Neg", negated},
    {"Floor Ceil Round", rounded},
    {"Not IsNaN IsInf", truth_of_first},
    {"Add Sub Mul Div Pow Min Max Sum Mean Mod And Or Xor BitShift BitwiseAnd BitwiseOr BitwiseXor",
     arithmetic},
    {"Equal Less Greater LessOrEqual GreaterOrEqual", comparison},
    {"Where", where},
    {"Cast CastLike", cast},
    {"LayerNormalization", layer_norm},
    {"BatchNormalization", batch_norm},
    {"SkipLayerNormalization SkipSimplifiedLayerNormalization", skip_layer_norm},
    {"Dropout", dropout},
    {"MatMul MatMulInteger Gemm FusedMatMul TransposeMatMul", matmul},
    {"QLinearMatMul", quantized_matmul},
    {"MatMulNBits", matmul_few_bits},
    {"Conv ConvInteger QLinearConv FusedConv", convolution},
    {"ConvTranspose", transposed_convolution},
    {"MaxPool AveragePool LpPool", pool},
    {"GlobalAveragePool GlobalMaxPool GlobalLpPool", global_pool},
    {"Einsum", einsum},
    {"RNN GRU LSTM", recurrent},
    {"MultiHeadAttention GroupQueryAttention", multi_head_attention},
    {"Reshape", reshape},
    {"Flatten", flatten},
    {"Squeeze", squeeze},
    {"Unsqueeze", unsqueeze},
    {"Transpose", transpose},
    {"Concat", concat},
    {"Split", split},
    {"Slice", slice},
    {"Gather", gather},
    {"GatherElements", gather_elements},
    {"GatherND", gather_nd},
    {"Expand", expand},
    {"Tile", tile},
    {"Pad", pad},
    {"Resize Upsample", resize},
    {"DepthToSpace SpaceToDepth", blocks_to_space},
    {"Shape", shape},
    {"Size", size_of_all},
    {"Constant", constant},
    {"ConstantOfShape", constant_of_shape},
    {"Range", range},
    {"RandomNormal RandomUniform", random_of_shape},
    {"RandomNormalLike RandomUniformLike EyeLike Bernoulli", like_first_of_type},
    {"OneHot", one_hot},
    {"ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp "
     "ReduceSumSquare",
     reduction},
    {"ArgMax ArgMin", index_of_extreme},
    {"TopK", top_k},
    {"SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss", loss},
    {"QuantizeLinear", quantize},
    {"DynamicQuantizeLinear", quantize_by_range},
    {"DequantizeLinear", dequantize},
    {"GridSample", grid_sample},
    {"RoiAlign", roi_align},
};

const std::unordered_map<std::string, Rule>& onnx_rules() {
  static const std::unordered_map<std::string, Rule> kByName = [] {
    std::unordered_map<std::string, Rule> by_name;
    for (const Row& row : kOnnxRules)
      for (const Word& name : split_words(row.names)) by_name.emplace(name.text, row.rule);
    return by_name;
  }();
  return kByName;
}

Rule onnx_rule(const OnnxNode& node) {
  if (node.type == "Attention") return node.domain == "com.microsoft" ? attention_with_weights : attention;
  const auto found = onnx_rules().find(node.type);
  return found == onnx_rules().end() ? nullptr : found->second;
}

}  // namespace

}  // namespace onnx

std::optional<OnnxValue> onnx_constant(const OnnxTensor& tensor) {
  const std::optional<DType> dtype = onnx_dtype(tensor.element);
  if (!dtype) return std::nullopt;
  OnnxValue value{.dtype = *dtype, .sizes = onnx::Sizes(tensor.dims.begin(), tensor.dims.end())};
  if (tensor.integers) value.integers = onnx::Sizes(tensor.integers->begin(), tensor.integers->end());
  value.reals = tensor.reals;
  return value;
}

std::optional<std::vector<OnnxValue>> onnx_outputs(const OnnxNode& node,
                                                   std::span<const OnnxValue* const> inputs,
                                                   std::int64_t opset) {
  const onnx::Rule rule = onnx::onnx_rule(node);
  if (rule == nullptr) return std::nullopt;
  onnx::OnnxCall call(node, inputs, opset);
  try {
    rule(call);
  } catch (const onnx::Unknown&) {
    return std::nullopt;
  } catch (const InputError&) {  // sizes beyond all bounds
    return std::nullopt;
  }
  for (OnnxValue& output : call.outputs) {
    std::int64_t elements = 1;
    for (const SizeExpr& size : output.sizes) {
      const std::int64_t number = size.constant().value_or(kMostOnnxConstants + 1);
      if (number < 0) return std::nullopt;
      elements = std::min(kMostOnnxConstants + 1, elements * std::min(number, kMostOnnxConstants + 1));
    }
    // Elements are for tensors that have as many, and few.
    const auto fits = [&](const auto& known) {
      return known && elements <= kMostOnnxConstants && known->size() == static_cast<std::size_t>(elements);
    };
    if (!fits(output.integers)) output.integers.reset();
    if (!fits(output.reals)) output.reals.reset();
  }
  return std::move(call.outputs);
}

}  // namespace espalier
