// ONNX models: planned and simulated, not run. What the file computes from sizes alone (Shape, Range, masks)
// is computed here and is no operator of the graph; every floating-point initializer of more than one element
// is a parameter.

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "espalier/base/check.h"
#include "espalier/base/spelling.h"
#include "espalier/cost/operator_table.h"
#include "espalier/frontend/decode.h"
#include "espalier/frontend/imported.h"
#include "espalier/frontend/onnx_file.h"
#include "espalier/frontend/onnx_sizes.h"
#include "espalier/frontend/profile.h"

namespace espalier {
namespace {

constexpr std::int64_t kMostSamples = 1048576;  // of a batch whose end the file does not say

// Views of PyTorch, from where the sizes of a training step come. ONNX Runtime copies some of them.
bool shares_memory(const OnnxNode& node) {
  constexpr std::string_view kViews[] = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity",
                                         "Expand",  "Slice",   "Split",   "Transpose"};
  return node.domain.empty() &&
         std::find(std::begin(kViews), std::end(kViews), node.type) != std::end(kViews);
}

bool draws_random_numbers(const OnnxNode& node) {
  constexpr std::string_view kRandom[] = {"RandomNormal",      "RandomUniform", "RandomNormalLike",
                                          "RandomUniformLike", "Bernoulli",     "Multinomial"};
  return std::find(std::begin(kRandom), std::end(kRandom), node.type) != std::end(kRandom);
}

class OnnxImporter {
 public:
  OnnxImporter(std::string_view bytes, const std::string& name, const ImportOptions& options)
      : file_(read_onnx_file(bytes, name)), name_(name), options_(options) {}

  Imported import() {
    refuse_what_is_not_read();
    choose_batch();
    add_initializers();
    add_inputs();
    for (const OnnxNode& node : file_.nodes) add_node(node);
    add_outputs();
    finish();
    return {.graph = graph(), .warnings = std::move(warnings_)};
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const { throw InputError(name_ + ": " + problem); }
  [[noreturn]] void fail(const OnnxNode& node, const std::string& problem) const {
    std::string where =
        "node " + quote(node.name.empty() && !node.outputs.empty() ? node.outputs[0] : node.name);
    where += " (" + node.type + (node.source.empty() ? ")" : ", " + node.source + ")");
    fail(where + " " + problem);
  }

  void refuse_what_is_not_read() const {
    if (file_.has_functions) {
      fail(
          "defines functions of its own, which are not read; put them in place with Python's onnx: "
          "onnx.save(onnx.inliner.inline_local_functions(onnx.load('model.onnx')), 'inlined.onnx')");
    }
  }

  // -- Sizes ----------------------------------------------------------------------------------------

  // The name of an open size: its symbol, or the input's name and the dimension ("?" is no name).
  static std::string symbol_of(const std::string& input, std::size_t dim, const OnnxDim& size) {
    const bool named = std::any_of(size.symbol.begin(), size.symbol.end(),
                                   [](unsigned char c) { return std::isalnum(c) != 0; });
    return named ? size.symbol : place_of(input, dim);
  }
  static std::string place_of(const std::string& input, std::size_t dim) {
    return input + "." + std::to_string(dim);
  }

  // Which open size is the batch: one that is called so, else the first dimension of the first input that has
  // one.
  void choose_batch() {
    for (const OnnxTensor& each : file_.initializers) initializers_.insert(each.name);
    std::erase_if(file_.inputs, [&](const auto& input) { return initializers_.contains(input.first); });
    for (const auto& [symbol, size] : options_.dims) {
      sizes_.emplace(symbol, size);
      unused_.insert(symbol);
      has_batch_ = has_batch_ || !size.constant();
    }
    std::string first;
    for (const auto& [input, type] : file_.inputs) {
      if (!type.is_tensor)
        fail("input " + quote(input) + " is no tensor (a sequence, map or optional value)");
      if (!type.dims) fail("input " + quote(input) + " has no shape in the file; export the model with one");
      for (std::size_t i = 0; i < type.dims->size(); ++i) {
        const OnnxDim& dim = (*type.dims)[i];
        if (dim.value || sizes_.contains(place_of(input, i))) continue;
        const std::string symbol = symbol_of(input, i, dim);
        if (sizes_.contains(symbol)) continue;
        if (batch_.empty() && is_called_batch(symbol)) batch_ = symbol;
        if (first.empty() && i == 0) first = symbol;
      }
    }
    if (batch_.empty()) batch_ = first;
    if (batch_.empty()) return;
    sizes_.emplace(batch_, SizeExpr::batch());
    has_batch_ = true;
  }

  static bool is_called_batch(std::string symbol) {
    for (char& c : symbol) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return symbol.find("batch") != std::string::npos || symbol == "n" || symbol == "b" || symbol == "bs";
  }

  // None: nobody says it.
  std::optional<SizeExpr> input_size(const std::string& input, std::size_t i, const OnnxDim& dim) {
    const std::string place = place_of(input, i), symbol = dim.value ? place : symbol_of(input, i, dim);
    for (const std::string& name : {place, symbol}) {
      const auto known = sizes_.find(name);
      if (known == sizes_.end()) continue;
      unused_.erase(name);
      return known->second;
    }
    if (dim.value) return *dim.value;
    if (symbol == place && i == 0 && !batch_.empty()) return SizeExpr::batch();
    return expression(symbol);
  }

  // A known name, or "128*batch", as exporters write sizes that they derived: numbers, known names, + - * //
  // and brackets.
  std::optional<SizeExpr> expression(const std::string& symbol) const {
    if (const auto known = sizes_.find(symbol); known != sizes_.end()) return known->second;
    std::string text;
    for (std::size_t at = 0; at < symbol.size();) {
      std::size_t end = at;
      while (end < symbol.size() &&
             (std::isalnum(static_cast<unsigned char>(symbol[end])) != 0 || symbol[end] == '_'))
        ++end;
      const std::string word = symbol.substr(at, end - at);
      if (word.empty()) {
        text += symbol[at++];
        continue;
      }
      at = end;
      const auto known = sizes_.find(word);
      if (known != sizes_.end()) {
        text += "(" + known->second.text() + ")";
      } else if (word.find_first_not_of("0123456789") == std::string::npos) {
        text += word;
      } else {
        return std::nullopt;
      }
    }
    try {
      return simplest(parse_size_expr(text));
    } catch (const InputError&) {
      return std::nullopt;
    }
  }

  // What the file says of a value that no rule derives.
  std::optional<OnnxValue> described(const std::string& name) const {
    const auto found = file_.types.find(name);
    if (found == file_.types.end() || !found->second.is_tensor || !found->second.dims) return std::nullopt;
    const auto dtype = onnx_dtype(found->second.element);
    if (!dtype) return std::nullopt;
    OnnxValue value{.dtype = *dtype};
    for (const OnnxDim& dim : *found->second.dims) {
      if (dim.value) {
        value.sizes.emplace_back(*dim.value);
        continue;
      }
      const auto size = expression(dim.symbol);
      if (!size) return std::nullopt;
      value.sizes.push_back(*size);
    }
    return value;
  }

  // -- Values ---------------------------------------------------------------------------------------

  // A value of the file: what is known of it, and its tensor in the graph unless it is computed here.
  struct Known {
    OnnxValue value;
    std::optional<TensorId> tensor = {};
    bool is_parameter = false;
  };

  Known& define(const std::string& name, OnnxValue value) {
    const auto [at, is_new] = values_.emplace(name, Known{.value = std::move(value)});
    if (!is_new) fail("gives the name " + quote(name) + " to two values");
    return at->second;
  }

  TensorId add_tensor(Tensor tensor, std::optional<TensorId> same_memory) {
    const TensorId id(parts_.tensors.size());
    tensor.storage = same_memory ? parts_.tensors[same_memory->index()].storage : StorageId(storages_++);
    parts_.tensors.push_back(std::move(tensor));
    return id;
  }

  // Whole numbers and single elements: parts of sizes, axes, masks, factors.
  static bool counts_as_constant(const OnnxTensor& tensor, DType dtype) {
    const bool whole = dtype == DType::kI32 || dtype == DType::kI64 || dtype == DType::kBool;
    return whole ||
           std::all_of(tensor.dims.begin(), tensor.dims.end(), [](std::int64_t dim) { return dim == 1; });
  }

  void add_initializers() {
    for (const OnnxNode& node : file_.nodes) {
      if (node.type != "BatchNormalization") continue;
      for (std::size_t i = 3; i < std::min<std::size_t>(node.inputs.size(), 5); ++i)
        statistics_.insert(node.inputs[i]);
    }
    for (const OnnxTensor& tensor : file_.initializers) add_initializer(tensor);
  }

  void add_initializer(const OnnxTensor& tensor) {
    std::optional<OnnxValue> value = onnx_constant(tensor);
    if (!value) fail("initializer " + quote(tensor.name) + " is of a type that is not read (text)");
    value->constant = counts_as_constant(tensor, value->dtype);
    Known& known = define(tensor.name, std::move(*value));
    if (!known.value.constant) add_weights(tensor.name, known);
  }

  // A parameter, or a buffer: whole numbers, and statistics of BatchNormalization.
  void add_weights(const std::string& name, Known& known) {
    Parameter parameter{.names = {name}, .dtype = known.value.dtype};
    for (const SizeExpr& size : known.value.sizes) parameter.sizes.push_back(*size.constant());
    known.is_parameter = is_floating_point(parameter.dtype) && !statistics_.contains(name);
    parameter.trainable = known.is_parameter;
    for (const std::string& pattern : options_.frozen) {
      if (!known.is_parameter || !matches_pattern(pattern, name)) continue;
      parameter.trainable = false;
      matched_.insert(pattern);
    }
    add_parameter(name, known, std::move(parameter));
  }

  void add_parameter(const std::string& name, Known& known, Parameter parameter) {
    known.tensor = add_tensor({.name = name,
                               .role = known.is_parameter ? TensorRole::kParameter : TensorRole::kBuffer,
                               .dtype = parameter.dtype,
                               .sizes = known.value.sizes,
                               .requires_grad = parameter.trainable,
                               .parameter = ParameterId(parts_.parameters.size())},
                              std::nullopt);
    parts_.parameters.push_back(std::move(parameter));
  }

  void add_inputs() {
    std::vector<std::string> open;  // sizes that nobody says
    std::string places;
    for (const auto& [input, type] : file_.inputs) {
      const auto dtype = onnx_dtype(type.element);
      if (!dtype) fail("input " + quote(input) + " is of a type that is not read (text)");
      OnnxValue value{.dtype = *dtype};
      for (std::size_t i = 0; i < type.dims->size(); ++i) {
        if (const auto size = input_size(input, i, (*type.dims)[i])) {
          value.sizes.push_back(*size);
          continue;
        }
        const std::string symbol = symbol_of(input, i, (*type.dims)[i]);
        if (std::find(open.begin(), open.end(), symbol) != open.end()) continue;
        open.push_back(symbol);
        places += (places.empty() ? "" : ", ") + quote(symbol) + " (dimension " + std::to_string(i) +
                  " of input " + quote(input) + ")";
      }
      Known& known = define(input, std::move(value));
      known.tensor =
          add_tensor({.name = input, .role = TensorRole::kInput, .dtype = *dtype, .sizes = known.value.sizes},
                     std::nullopt);
    }
    if (!unused_.empty())
      fail("--dim " + *unused_.begin() + ": no input has a size of that name" + open_sizes());
    if (open.empty()) return;
    std::string flags;
    for (const std::string& symbol : open) flags += " --dim " + symbol + "=128";
    fail("leaves open how large " + places + (open.size() == 1 ? " is" : " are") + "; say it, such as" +
         flags);
  }

  std::string open_sizes() const {
    std::vector<std::string> names;
    for (const auto& [input, type] : file_.inputs) {
      for (std::size_t i = 0; i < type.dims->size(); ++i) {
        if ((*type.dims)[i].value) continue;
        const std::string symbol = symbol_of(input, i, (*type.dims)[i]);
        if (std::find(names.begin(), names.end(), symbol) == names.end()) names.push_back(symbol);
      }
    }
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "; open are " : ", ") + name;
    return text;
  }

  // PyTorch's exporters write weights of equal values once. Biases that are all zero are equal, and still
  // belong to one layer each; equal matrices are tied. So each operator that reads a vector has a parameter
  // of its own.
  TensorId own_vector(TensorId id) {
    const Tensor& tensor = parts_.tensors[id.index()];
    if (!tensor.parameter || tensor.role != TensorRole::kParameter || tensor.sizes.size() > 1) return id;
    const std::size_t readers = ++vector_readers_[id.index()];
    if (readers == 1) return id;
    Parameter parameter = parts_.parameters[tensor.parameter->index()];
    parameter.names = {parameter.names[0] + "#" + std::to_string(readers)};
    Known copy{.value = {.dtype = tensor.dtype, .sizes = tensor.sizes}, .is_parameter = true};
    const std::string name = parameter.names[0];
    add_parameter(name, copy, std::move(parameter));
    return *copy.tensor;
  }

  // The older exporter gives them to all their readers through Identity.
  bool is_another_parameter(const OnnxNode& node) const {
    if (node.type != "Identity" || node.inputs.size() != 1 || node.outputs.size() != 1) return false;
    const auto from = values_.find(node.inputs[0]);
    return from != values_.end() && from->second.tensor && from->second.value.sizes.size() <= 1 &&
           parts_.tensors[from->second.tensor->index()].parameter;
  }

  // The branch that is taken, where that follows from sizes: exporters ask whether a dimension is one.
  void add_branch(const OnnxNode& node) {
    const auto condition = node.inputs.empty() ? values_.end() : values_.find(node.inputs[0]);
    const auto& truth = condition == values_.end() ? std::nullopt : condition->second.value.integers;
    if (!truth || truth->size() != 1 || !truth->front().constant())
      fail(node, "chooses between two graphs when it runs, which is not read");
    const OnnxAttribute* const taken =
        node.find(truth->front() == SizeExpr(0) ? "else_branch" : "then_branch");
    if (taken == nullptr || !taken->graph || taken->graph->outputs.size() < node.outputs.size())
      fail(node, "lacks the branch that is taken");
    const OnnxGraph& branch = *taken->graph;
    for (const OnnxTensor& tensor : branch.initializers) add_initializer(tensor);
    file_.types.insert(branch.types.begin(), branch.types.end());
    for (const OnnxNode& inner : branch.nodes) add_node(inner);
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      const auto made = values_.find(branch.outputs[i]);
      if (made == values_.end())
        fail(node, "names an output " + quote(branch.outputs[i]) + " that nobody makes");
      const Known known = made->second;
      if (!values_.emplace(node.outputs[i], known).second)
        fail("gives the name " + quote(node.outputs[i]) + " to two values");
    }
  }

  void add_node(const OnnxNode& node) {
    if (node.type == "If") {
      add_branch(node);
      return;
    }
    for (const OnnxAttribute& attribute : node.attributes)
      if (attribute.graph) fail(node, "repeats a graph of its own as often as data say, which is not read");
    std::vector<const OnnxValue*> inputs;
    for (const std::string& input : node.inputs) {
      const auto found = values_.find(input);
      if (found == values_.end() && !input.empty())
        fail(node, "reads " + quote(input) + ", which is neither an input nor made before it");
      inputs.push_back(input.empty() ? nullptr : &found->second.value);
    }
    if (is_another_parameter(node)) {
      const Known from = values_.at(node.inputs[0]);
      Known& known = define(node.outputs[0], from.value);
      known.is_parameter = from.is_parameter;
      Parameter parameter = parts_.parameters[parts_.tensors[from.tensor->index()].parameter->index()];
      parameter.names = {node.outputs[0]};
      add_parameter(node.outputs[0], known, std::move(parameter));
      return;
    }
    std::vector<OnnxValue> outputs = outputs_of(node, inputs);
    if (holds_weights(node, outputs)) {
      add_weights(node.outputs[0], define(node.outputs[0], std::move(outputs[0])));
      return;
    }
    const bool sizes_alone = node.type == "Shape" || node.type == "Size";
    const bool constant =
        !draws_random_numbers(node) &&
        (sizes_alone || std::all_of(inputs.begin(), inputs.end(), [](const OnnxValue* input) {
           return input == nullptr || input->constant;
         }));
    if (!constant) {
      add_operator(node, std::move(outputs));
      return;
    }
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i].empty()) continue;
      outputs[i].constant = true;
      define(node.outputs[i], std::move(outputs[i]));
    }
  }

  // Some exporters write weights as Constant nodes; files without weights make them by ConstantOfShape.
  bool holds_weights(const OnnxNode& node, const std::vector<OnnxValue>& outputs) const {
    if (node.outputs.size() != 1 || node.outputs[0].empty() || !is_floating_point(outputs[0].dtype))
      return false;
    std::int64_t longest = 1;
    for (const SizeExpr& size : outputs[0].sizes) {
      if (!size.constant()) return false;
      longest = std::max(longest, *size.constant());
    }
    if (longest < 2) return false;
    return node.type == "Constant" ||
           (node.type == "ConstantOfShape" && initializers_.contains(node.inputs[0]));
  }

  std::vector<OnnxValue> outputs_of(const OnnxNode& node, const std::vector<const OnnxValue*>& inputs) const {
    auto derived = onnx_outputs(node, inputs, file_.opset);
    std::vector<OnnxValue> outputs;
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      const std::string& output = node.outputs[i];
      if (derived) {
        outputs.push_back(std::move((*derived)[i]));
        continue;
      }
      const auto said = output.empty() ? std::optional(OnnxValue()) : described(output);
      if (!said) {
        fail(node, "gives " + quote(output) +
                       ", whose size neither its inputs nor the file tell; let Python's onnx "
                       "write sizes into the file: "
                       "onnx.save(onnx.shape_inference.infer_shapes(onnx.load('model.onnx'), "
                       "data_prop=True), 'sized.onnx')");
      }
      outputs.push_back(*said);
    }
    return outputs;
  }

  std::string operator_name(const OnnxNode& node) {
    const auto first = std::find_if(node.outputs.begin(), node.outputs.end(),
                                    [](const auto& each) { return !each.empty(); });
    if (first == node.outputs.end()) fail(node, "has no output");
    std::string name = node.name.empty() ? *first : node.name;
    bool is_new = names_.insert(name).second;
    for (std::size_t i = 1; !is_new; ++i) {
      name = i == 1 ? *first : *first + "_" + std::to_string(i);
      is_new = names_.insert(name).second;
    }
    return name;
  }

  void add_operator(const OnnxNode& node, std::vector<OnnxValue> outputs) {
    const std::string base = base_name(node.type);
    const OperatorId id(parts_.operators.size());
    Operator op{.name = operator_name(node), .target = "onnx." + node.type};
    op.module_path = node.module_path;
    op.source = node.source;
    op.random = draws_random_numbers(node);
    op.known = find_family(base) != nullptr || find_aten(base) != nullptr;
    for (const std::string& input : node.inputs) {
      if (input.empty()) continue;
      if (const auto tensor = values_.at(input).tensor) op.inputs.push_back(own_vector(*tensor));
    }
    const bool reads_gradient = std::any_of(op.inputs.begin(), op.inputs.end(), [&](TensorId input) {
      return parts_.tensors[input.index()].requires_grad;
    });
    const AtenOperator* const aten = find_aten(base);
    const bool differentiable = aten == nullptr || aten->differentiable;
    const bool view =
        shares_memory(node) && !op.inputs.empty() && values_.at(node.inputs[0]).tensor == op.inputs[0];
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (node.outputs[i].empty()) continue;
      Known& known = define(node.outputs[i], std::move(outputs[i]));
      known.value.integers.reset();
      known.value.reals.reset();
      known.tensor = add_tensor(
          {.name = node.outputs[i],
           .dtype = known.value.dtype,
           .sizes = known.value.sizes,
           .requires_grad = reads_gradient && differentiable && is_floating_point(known.value.dtype),
           .producer = id},
          view ? std::optional(op.inputs[0]) : std::nullopt);
      op.outputs.push_back(*known.tensor);
    }
    op.duplicable = is_duplicable(op);
    op.op_class = default_op_class(op, parts_.tensors) + attributes_text(node);
    parts_.operators.push_back(std::move(op));
  }

  bool is_duplicable(const Operator& op) const {
    return op.known && !op.random &&
           std::all_of(op.inputs.begin(), op.inputs.end(),
                       [&](TensorId id) {
                         const Tensor& tensor = parts_.tensors[id.index()];
                         return tensor.producer ? parts_.operators[tensor.producer->index()].duplicable
                                                : tensor.role != TensorRole::kParameter;
                       }) &&
           std::none_of(op.outputs.begin(), op.outputs.end(),
                        [&](TensorId id) { return parts_.tensors[id.index()].requires_grad; });
  }

  // "{group=32,strides=2;2}": what else decides the cost.
  static std::string attributes_text(const OnnxNode& node) {
    std::map<std::string, std::string> sorted;
    for (const OnnxAttribute& each : node.attributes) {
      std::string value;
      if (each.integer) value = std::to_string(*each.integer);
      for (const std::int64_t number : each.integers)
        value += (value.empty() ? "" : ";") + std::to_string(number);
      if (value.empty()) value = each.text.substr(0, 40);
      for (char& c : value)
        if (static_cast<unsigned char>(c) <= ' ' || static_cast<unsigned char>(c) >= 0x7f || c == '"')
          c = '_';
      if (!value.empty()) sorted.emplace(each.name, std::move(value));
    }
    std::string text;
    for (const auto& [name, value] : sorted) text += (text.empty() ? "{" : ",") + name + "=" + value;
    return text.empty() ? text : text + "}";
  }

  // -- The whole ------------------------------------------------------------------------------------

  void add_outputs() {
    for (const std::string& output : file_.outputs) {
      const auto found = values_.find(output);
      if (found == values_.end()) fail("names an output " + quote(output) + " that nobody makes");
      const auto tensor = found->second.tensor;
      if (tensor && std::find(parts_.outputs.begin(), parts_.outputs.end(), *tensor) == parts_.outputs.end())
        parts_.outputs.push_back(*tensor);
    }
    for (const TensorId id : parts_.outputs) {
      const Tensor& tensor = parts_.tensors[id.index()];
      const bool can_be = tensor.sizes.empty() && is_floating_point(tensor.dtype) && tensor.producer;
      if (options_.loss.empty() ? can_be && tensor.requires_grad : tensor.name == options_.loss) {
        if (!can_be)
          fail("output " + quote(options_.loss) + " cannot be the loss: it is not one floating-point number");
        if (parts_.loss) fail("has several outputs that could be the loss; name one with --loss");
        parts_.loss = id;
      }
    }
    if (!options_.loss.empty() && !parts_.loss) fail("has no output " + quote(options_.loss));
  }

  void finish() {
    parts_.name = file_stem(name_);
    parts_.batch = {BatchSize(1), BatchSize(kMostSamples)};
    for (const std::string& pattern : options_.frozen)
      if (!matched_.contains(pattern)) fail("--freeze '" + pattern + "' matches no parameter");
    if (!has_batch_) {
      std::int64_t samples = 1;
      if (!file_.inputs.empty() && !file_.inputs[0].second.dims->empty()) {
        const auto size = values_.at(file_.inputs[0].first).value.sizes[0].constant();
        samples = size.value_or(1);
      }
      if (samples < 1) fail("its first input holds no sample");
      parts_.batch = {BatchSize(samples), BatchSize(samples)};
      std::string opened;
      for (const auto& [input, type] : file_.inputs)
        if (!type.dims->empty()) opened += " --dim " + place_of(input, 0) + "=b";
      warnings_.push_back("the file has a fixed batch of " + std::to_string(samples) +
                          ": export it with an open one, or try" + opened);
    }
    if (parts_.operators.empty()) fail("has no operator that reads an input or a weight");
    keep_what_is_read();
  }

  // Weights that only sizes are taken of, or that nobody reads, are none. Storages are numbered anew.
  void keep_what_is_read() {
    std::vector<bool> read(parts_.tensors.size(), false);
    for (const Operator& op : parts_.operators)
      for (const TensorId input : op.inputs) read[input.index()] = true;
    std::vector<TensorId> moved(parts_.tensors.size());
    std::unordered_map<std::size_t, StorageId> storages;
    GraphParts kept{.name = parts_.name, .batch = parts_.batch, .training_mode = false};
    for (std::size_t i = 0; i < parts_.tensors.size(); ++i) {
      Tensor& tensor = parts_.tensors[i];
      if (!read[i] && !tensor.producer && tensor.parameter) continue;
      moved[i] = TensorId(kept.tensors.size());
      tensor.storage = storages.emplace(tensor.storage.index(), StorageId(storages.size())).first->second;
      if (tensor.parameter) {
        Parameter& parameter = parts_.parameters[tensor.parameter->index()];
        tensor.parameter = ParameterId(kept.parameters.size());
        kept.parameters.push_back(std::move(parameter));
      }
      kept.tensors.push_back(std::move(tensor));
    }
    for (Operator& op : parts_.operators) {
      for (TensorId& input : op.inputs) input = moved[input.index()];
      for (TensorId& output : op.outputs) output = moved[output.index()];
    }
    for (const TensorId output : parts_.outputs)
      if (parts_.tensors[output.index()].producer || read[output.index()])
        kept.outputs.push_back(moved[output.index()]);
    if (parts_.loss) kept.loss = moved[parts_.loss->index()];
    kept.operators = std::move(parts_.operators);
    parts_ = std::move(kept);
  }

  Graph graph() {
    try {
      return Graph(with_colocation(std::move(parts_)));
    } catch (const InputError& error) {  // only to name the file
      fail(error.what());
    }
  }

  OnnxFile file_;
  const std::string& name_;
  const ImportOptions& options_;
  std::unordered_map<std::string, SizeExpr> sizes_;         // by symbol
  std::unordered_set<std::string> unused_;                  // symbols of --dim that no input has
  std::string batch_;                                       // its symbol, if it has one
  bool has_batch_ = false;                                  // else it is fixed
  std::unordered_set<std::string> initializers_, matched_;  // by name; patterns of --freeze that matched
  std::unordered_set<std::string> statistics_;              // of BatchNormalization: not trained
  std::unordered_map<std::string, Known> values_;
  std::unordered_set<std::string> names_;
  std::unordered_map<std::size_t, std::size_t> vector_readers_;  // by tensor
  std::size_t storages_ = 0;
  GraphParts parts_;
  std::vector<std::string> warnings_;
};

}  // namespace

Imported import_onnx(std::string_view bytes, const std::string& name, const ImportOptions& options) {
  return OnnxImporter(bytes, name, options).import();
}

}  // namespace espalier
