#include "espalier/cost/operator_family.h"

#include <algorithm>
#include <cctype>
#include <unordered_map>

namespace espalier {
namespace {

constexpr std::uint32_t kIn0 = 1, kIn1 = 2, kIn2 = 4;
constexpr std::uint32_t kOut = kSavesOutput, kIntegers = kSavesIntegers, kProduct = kSavesProduct;

OperatorFamily elementwise(std::uint32_t saves, double flops, Keeps keeps = Keeps::kNothing) {
  OperatorFamily family;
  family.family = Family::kElementwise;
  family.saves = saves;
  family.flops_per_element = flops;
  family.keeps = keeps;
  return family;
}

OperatorFamily without_gradient(Family kind) {
  OperatorFamily family;
  family.family = kind;
  family.has_gradient = false;
  return family;
}

OperatorFamily contraction(Family kind, Contraction form, std::uint32_t first_operand = 0) {
  OperatorFamily family;
  family.family = kind;
  family.contraction = form;
  family.first_operand = first_operand;
  family.saves = kProduct;
  family.reorders = kind == Family::kConvolution;
  return family;
}

OperatorFamily lookup() {
  OperatorFamily family;
  family.family = Family::kLookup;
  family.saves = kIntegers;
  return family;
}

OperatorFamily attention() {
  OperatorFamily family;
  family.family = Family::kAttention;
  family.saves = kIn0 | kIn1 | kIn2 | (1u << 3) | kOut;  // the fourth input is a mask
  family.keeps = Keeps::kLogSumExp;
  family.reorders = true;  // backward adds up q's gradient in a buffer of its own
  return family;
}

OperatorFamily recurrent() {
  OperatorFamily family;
  family.family = Family::kRecurrent;
  family.saves = kIn0;
  family.keeps = Keeps::kGates;
  return family;
}

using Table = std::unordered_map<std::string_view, OperatorFamily>;

void add(Table& table, const OperatorFamily& family, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) table.emplace(name, family);
}

Table make_table() {
  Table table;
  add(table, without_gradient(Family::kView),
      {"view",
       "expand",
       "expand_as",
       "transpose",
       "t",
       "numpy_t",
       "permute",
       "unsqueeze",
       "squeeze",
       "slice",
       "select",
       "split",
       "split_with_sizes",
       "chunk",
       "unbind",
       "narrow",
       "unflatten",
       "detach",
       "alias",
       "as_strided",
       "view_as",
       "movedim",
       "swapaxes",
       "diagonal",
       "unfold",
       "broadcast_tensors",
       "getitem",
       "sym_size",
       "sym_numel",
       "sym_stride",
       "size",
       "shape",
       "identity",
       "assert_tensor_metadata",
       "assert_scalar",
       "assert_async",
       "lift_fresh_copy",
       "lift_fresh",
       "wrap_with_set_grad_enabled",
       "parameter",
       "input",
       "output",
       "placeholder"});
  add(table, without_gradient(Family::kGenerate),
      {"arange",     "zeros",           "ones",      "full",       "empty",
       "zeros_like", "ones_like",       "full_like", "empty_like", "eye",
       "linspace",   "scalar_tensor",   "new_zeros", "new_ones",   "new_full",
       "new_empty",  "constantofshape", "range",     "rand",       "randn",
       "rand_like",  "randn_like",      "bernoulli", "randint",    "constant"});
  add(table, without_gradient(Family::kElementwise),
      {"eq",
       "ne",
       "lt",
       "le",
       "gt",
       "ge",
       "logical_and",
       "logical_or",
       "logical_not",
       "bitwise_and",
       "bitwise_or",
       "bitwise_not",
       "and",
       "or",
       "not",
       "xor",
       "isnan",
       "isinf",
       "isfinite",
       "argmax",
       "argmin",
       "sign",
       "floor",
       "ceil",
       "round",
       "floor_divide",
       "remainder",
       "any",
       "all",
       "nonzero",
       "argsort",
       "one_hot",
       "equal",
       "less",
       "greater",
       "lessorequal",
       "greaterorequal",
       "bucketize",
       "searchsorted"});
  // Move data, keep nothing.
  add(table, elementwise(0, 0),
      {"reshape", "flatten",       "contiguous",      "clone",  "copy",   "to",     "to_copy",
       "type_as", "cast",          "float",           "half",   "cat",    "concat", "concatenate",
       "stack",   "pad",           "constant_pad_nd", "roll",   "flip",   "repeat", "repeat_interleave",
       "tile",    "pixel_shuffle", "unsafe_view",     "hstack", "vstack", "resize"});
  add(table, elementwise(0, 1),
      {"add", "sub", "rsub", "neg", "sum", "mean", "cumsum", "diff", "mean_dim", "reducemean", "reducesum",
       "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "interpolate", "globalaveragepool"});
  add(table, elementwise(0, 8),
      {"upsample_bilinear2d", "upsample_linear1d", "upsample_trilinear3d", "upsample_bicubic2d"});
  add(table, elementwise(kProduct, 1), {"mul", "dot", "multiply", "addcmul", "outer", "cross"});
  add(table, elementwise(kIn0 | kIn1, 4),
      {"div",
       "true_divide",
       "divide",
       "mse_loss",
       "l1_loss",
       "smooth_l1_loss",
       "huber_loss",
       "kl_div",
       "binary_cross_entropy",
       "binary_cross_entropy_with_logits",
       "maximum",
       "minimum",
       "atan2",
       "hypot",
       "cosine_similarity",
       "prelu",
       "lerp",
       "addcdiv",
       "cdist",
       "cosine_embedding_loss",
       "margin_ranking_loss"});
  add(table, elementwise(kOut, 1), {"relu", "relu6", "threshold"});
  add(table, elementwise(kOut, 12), {"tanh", "sigmoid", "exp", "sqrt", "rsqrt", "reciprocal"});
  add(table, elementwise(kOut, 16), {"softmax", "log_softmax", "safe_softmax", "logsoftmax"});
  add(table, elementwise(kIn0, 2),
      {"abs",
       "clamp",
       "clamp_min",
       "clamp_max",
       "clip",
       "leaky_relu",
       "leakyrelu",
       "hardtanh",
       "hardsigmoid",
       "hardswish",
       "square",
       "avg_pool1d",
       "avg_pool2d",
       "avg_pool3d",
       "adaptive_avg_pool1d",
       "adaptive_avg_pool2d",
       "adaptive_avg_pool3d",
       "averagepool",
       "var",
       "std",
       "var_mean"});
  add(table, elementwise(kIn0, 16),
      {"gelu", "silu", "elu", "selu", "celu", "mish", "softplus", "logsigmoid", "sin", "cos", "log", "log1p",
       "log2", "pow", "erf", "glu", "expm1", "fastgelu"});
  add(table, elementwise(kIn0 | kOut, 2),
      {"linalg_vector_norm", "norm", "amax", "amin", "logsumexp", "normalize", "prod", "frobenius_norm"});
  add(table, elementwise(0, 2, Keeps::kIndices), {"max", "min", "median", "sort", "topk", "kthvalue"});
  add(table, elementwise(kIn0, 9, Keeps::kIndices),
      {"max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "adaptive_max_pool2d", "maxpool",
       "max_pool1d_with_indices", "max_pool3d_with_indices"});
  add(table, elementwise(0, 8, Keeps::kMask), {"dropout", "native_dropout", "alpha_dropout"});
  add(table, elementwise(0, 2, Keeps::kChannelMask),
      {"feature_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d"});
  add(table, elementwise(kIn0 | kIn1, 8, Keeps::kRowStatistics),
      {"layer_norm", "native_layer_norm", "rms_norm", "layernormalization", "skiplayernormalization",
       "fused_rms_norm", "simplifiedlayernormalization"});
  add(table, elementwise(kIn0 | kIn1, 8, Keeps::kGroupStatistics),
      {"group_norm", "native_group_norm", "instance_norm"});
  add(table, elementwise(kIn0 | kIn1, 8, Keeps::kChannelStatistics),
      {"batch_norm", "native_batch_norm", "native_batch_norm_legit", "native_batch_norm_legit_functional",
       "native_batch_norm_legit_no_training", "batch_norm_with_update", "cudnn_batch_norm",
       "batchnormalization"});
  add(table, elementwise(kIntegers, 18, Keeps::kProbabilities), {"cross_entropy_loss", "cross_entropy"});
  add(table, elementwise(kIn0 | kIn1, 1), {"nll_loss", "nll_loss_forward", "nll_loss2d", "nll_loss_nd"});
  add(table, elementwise(kIntegers, 1), {"where", "masked_fill", "masked_scatter", "tril", "triu", "trilu"});
  add(table, lookup(),
      {"embedding", "embedding_bag", "embedding_bag_forward_only", "index", "index_select", "gather",
       "gatherelements", "take", "take_along_dim", "index_put", "scatter", "scatter_add", "masked_select"});
  add(table, contraction(Family::kMatrix, Contraction::kProduct),
      {"linear", "matmul", "mm", "bmm", "mv", "gemm", "batch_matmul", "chain_matmul"});
  add(table, contraction(Family::kMatrix, Contraction::kProduct, 1), {"addmm", "baddbmm", "addmv", "addbmm"});
  add(table, contraction(Family::kMatrix, Contraction::kEinsum), {"einsum", "tensordot", "bilinear"});
  add(table, contraction(Family::kConvolution, Contraction::kConvolution),
      {"conv1d", "conv2d", "conv3d", "conv", "convolution", "cudnn_convolution", "mkldnn_convolution"});
  add(table, contraction(Family::kConvolution, Contraction::kTransposedConvolution),
      {"conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convtranspose"});
  add(table, attention(),
      {"scaled_dot_product_attention", "scaled_dot_product_flash_attention", "multiheadattention",
       "scaled_dot_product_efficient_attention", "scaled_dot_product_flash_attention_for_cpu",
       "scaled_dot_product_cudnn_attention", "attention", "sdpa"});
  add(table, recurrent(), {"lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn"});
  return table;
}

bool only_views(const Graph& graph, const Operator& op) {
  if (!op.mutates.empty() || op.outputs.empty()) return false;
  return std::all_of(op.outputs.begin(), op.outputs.end(), [&](TensorId output) {
    return std::any_of(op.inputs.begin(), op.inputs.end(), [&](TensorId input) {
      return graph.tensor(input).storage == graph.tensor(output).storage;
    });
  });
}

}  // namespace

std::string base_name(std::string_view target) {
  for (const std::string_view prefix : {"torch.ops.", "aten.", "higher_order.", "prims.", "onnx.", "ai.onnx.",
                                        "_operator.", "operator.", "aten::"}) {
    if (target.rfind(prefix, 0) == 0) target.remove_prefix(prefix.size());
  }
  target = target.substr(0, target.find('.'));
  while (target.size() > 1 && target.front() == '_') target.remove_prefix(1);
  while (target.size() > 1 && target.back() == '_') target.remove_suffix(1);
  std::string name(target);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

OperatorFamily operator_family(const Graph& graph, OperatorId id) {
  static const Table kTable = make_table();
  const Operator& op = graph.op(id);
  if (only_views(graph, op)) return without_gradient(Family::kView);
  const std::string name = base_name(op.target);
  const auto found = kTable.find(name);
  if (found == kTable.end()) {
    OperatorFamily family;  // keeps its floating-point inputs, as most operators do
    family.saves = 0;
    for (std::size_t i = 0; i < std::min<std::size_t>(op.inputs.size(), 24); ++i) family.saves |= 1u << i;
    family.flops_per_element = 2;
    return family;
  }
  return found->second;
}

}  // namespace espalier
