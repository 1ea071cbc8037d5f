#include "espalier/frontend/program_reader.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/frontend/decode.h"
#include "espalier/frontend/libtorch_operators.h"
#include "espalier/frontend/program_arguments.h"
#include "espalier/frontend/srepr.h"
#include "espalier/frontend/weight_tables.h"

namespace espalier {
namespace {

using Scope = ProgramScope;

constexpr int kMaxInlining = 20;
constexpr std::int64_t kUnboundedBatch = std::int64_t{1} << 20;  // where an export names no largest batch

// "L__self__,,m.M;L__self__l.0,l.0,torch.nn.Linear" → "l.0": the innermost module's name.
std::string innermost_module(const Json& metadata) {
  const Json* const stack = find_member(metadata, "nn_module_stack");
  if (stack == nullptr || !stack->is_string()) return {};
  std::string_view level = stack->get_ref<const std::string&>();
  if (const auto semicolon = level.rfind(';'); semicolon != std::string_view::npos)
    level.remove_prefix(semicolon + 1);
  const auto first = level.find(',');
  if (first == std::string_view::npos) return {};
  const auto second = level.find(',', first + 1);
  if (second == std::string_view::npos) return {};
  std::string_view path = level.substr(first + 1, second - first - 1);
  path = path.substr(0, path.find('@'));  // "l.0@1" is a second call of l.0
  return one_line(path);
}

// Whether a file is PyTorch's: under a folder of packages, or as the exporter shortens it.
bool is_of_torch(std::string_view path) {
  return path.starts_with("torch/") || path.find("-packages/torch/") != std::string_view::npos;
}

// `File "m.py", line 9, in forward` → "m.py:9": of the frames, outermost first, the innermost that is not
// PyTorch's.
std::string source_line(const Json& metadata) {
  const Json* const trace = find_member(metadata, "stack_trace");
  if (trace == nullptr || !trace->is_string()) return {};
  const std::vector<TraceFrame> frames = trace_frames(trace->get_ref<const std::string&>());
  if (frames.empty()) return {};
  const auto users = std::find_if(frames.rbegin(), frames.rend(),
                                  [](const TraceFrame& frame) { return !is_of_torch(frame.path); });
  const TraceFrame& frame = users == frames.rend() ? frames.back() : *users;
  return one_line(frame.path) + ":" + std::string(frame.line);
}

class ProgramReader {
 public:
  ProgramReader(const Json& model, const std::string& model_name, const ZipReader& archive,
                const std::string& name, const ExportNotes& notes)
      : model_(model), notes_(notes) {
    place_.file = name;
    const std::int64_t major =
        integer(member(member(model, "schema_version", place_), "major", place_), "a schema version", place_);
    if (major != 8) {
      place_.fail("is written in schema version " + std::to_string(major) +
                  "; this program reads version 8, which torch 2.8 and newer write");
    }
    weights_ = read_weight_tables(archive, name, model_name);
  }

  FlatProgram read() {
    const Json& module = member(model_, "graph_module", place_);
    const Json& graph = member(module, "graph", place_);
    const Json& signature = member(module, "signature", place_);
    Scope scope(graph);
    find_batch(signature, scope);
    find_devices(scope);
    read_inputs(signature, scope);
    read_nodes(graph, scope, {}, 0);
    read_outputs(signature, scope);
    return std::move(program_);
  }

 private:
  // -- The batch ------------------------------------------------------------------------------------------

  // The symbol in the inputs' first dimensions; all must have the same.
  void find_batch(const Json& signature, const Scope& scope) {
    std::string of_input;
    std::optional<std::int64_t> first_size;
    for (const Json& spec : list(signature, "input_specs", place_)) {
      const Tagged kind = tagged(spec, "an input", place_);
      const Json* const argument = find_member(*kind.value, "arg");
      const Json* const tensor = argument == nullptr ? nullptr : find_member(*argument, "as_tensor");
      if (kind.tag != "user_input" || tensor == nullptr) continue;
      const std::string name = text(*tensor, "name", place_);
      const auto value = scope.tensor_values.find(name);
      if (value == scope.tensor_values.end()) place_.fail("has no sizes for its input " + quote(name));
      const Json::array_t& sizes = list(*value->second, "sizes", place_);
      if (sizes.empty()) continue;
      const Json* const expression = find_member(sizes.front(), "as_expr");
      if (expression == nullptr) {
        const Json* const constant = find_member(sizes.front(), "as_int");
        if (constant != nullptr && !first_size) first_size = integer(*constant, "a size", place_);
        continue;
      }
      for (const std::string& symbol : srepr_symbols(text(*expression, "expr_str", place_))) {
        if (!sizes_.batch_symbol.empty() && symbol != sizes_.batch_symbol) {
          place_.fail("has inputs " + quote(of_input) + " and " + quote(name) +
                      " whose first dimensions vary on their own (" + quote(sizes_.batch_symbol) + ", " +
                      quote(symbol) + "): export the model with one dynamic batch for all inputs");
        }
        sizes_.batch_symbol = symbol;
        of_input = name;
      }
    }
    if (sizes_.batch_symbol.empty()) {
      const BatchSize batch = notes_.fixed_batch.value_or(BatchSize(first_size.value_or(1)));
      if (batch.count() < 1 || batch.count() > kUnboundedBatch) {
        place_.fail("has a batch of " + std::to_string(batch.count()) + "; expected 1 to " +
                    std::to_string(kUnboundedBatch));
      }
      program_.batch = {batch, batch};
    } else {
      program_.batch = range_of(sizes_.batch_symbol);
    }
  }

  BatchRange range_of(const std::string& symbol) const {
    BatchRange range{BatchSize(1), BatchSize(kUnboundedBatch)};
    const Json* const constraints = find_member(model_, "range_constraints");
    const Json* const own = constraints == nullptr ? nullptr : find_member(*constraints, symbol.c_str());
    if (own == nullptr) return range;
    if (const Json* const min = find_member(*own, "min_val"); min != nullptr && !min->is_null()) {
      range.min = std::max(range.min, BatchSize(integer(*min, "a smallest batch", place_)));
    }
    if (const Json* const max = find_member(*own, "max_val"); max != nullptr && !max->is_null()) {
      range.max = std::min(range.max, BatchSize(integer(*max, "a largest batch", place_)));
    }
    if (range.min > range.max) {
      place_.fail("allows batches from " + std::to_string(range.min.count()) + " to " +
                  std::to_string(range.max.count()) + ", which is none");
    }
    return range;
  }

  // -- Inputs and outputs ---------------------------------------------------------------------------------

  void read_inputs(const Json& signature, Scope& scope) {
    for (const Json& spec : list(signature, "input_specs", place_)) {
      const Tagged kind = tagged(spec, "an input", place_);
      place_.input = input_name(*kind.value);
      if (kind.tag == "user_input") {
        read_user_input(member(*kind.value, "arg", place_), scope);
      } else if (kind.tag == "parameter") {
        read_stored(*kind.value, "parameter_name", TensorRole::kParameter, scope);
      } else if (kind.tag == "buffer") {
        read_stored(*kind.value, "buffer_name", TensorRole::kBuffer, scope);
      } else if (kind.tag == "tensor_constant") {
        read_stored(*kind.value, "tensor_constant_name", TensorRole::kConstant, scope);
      } else if (kind.tag == "constant_input") {
        program_.inputs.push_back({text(*kind.value, "name", place_), std::nullopt});
      } else {
        place_.fail("has an input of kind " + quote(kind.tag) +
                    ", which is not supported: only tensors and constants can be planned and sent");
      }
    }
    place_.input.clear();
  }

  static std::string input_name(const Json& spec) {
    const Json* holder = find_member(spec, "arg");
    if (holder != nullptr && find_member(*holder, "as_tensor") != nullptr)
      holder = find_member(*holder, "as_tensor");
    const Json* const name = holder == nullptr ? nullptr : find_member(*holder, "name");
    return name != nullptr && name->is_string() ? name->get<std::string>() : std::string();
  }

  void read_user_input(const Json& argument, Scope& scope) {
    const Tagged value = tagged(argument, "an input", place_);
    if (value.tag == "as_tensor") {
      const std::string name = text(*value.value, "name", place_);
      const TensorId id = add_tensor(name, TensorRole::kInput, scope);
      program_.inputs.push_back({name, id});
    } else if (value.tag.starts_with("as_sym")) {
      place_.fail("has an input that is a varying number: export the model with it fixed, or as a tensor");
    } else {
      program_.inputs.push_back({"", std::nullopt});  // baked into the program
    }
  }

  // A parameter, buffer or constant. One whose bytes an earlier one has is a tie: a further name.
  void read_stored(const Json& spec, const char* name_key, TensorRole role, Scope& scope) {
    const std::string graph_name = text(member(spec, "arg", place_), "name", place_);
    const std::string name = text(spec, name_key, place_);
    StoredTensor stored = weights_.find(name);
    if (stored.absent) {
      const auto tie = notes_.ties.find(name);
      const auto first = tie == notes_.ties.end() ? absent_.end() : absent_.find(tie->second);
      if (first != absent_.end()) {
        add_name(first->second, name, graph_name, scope);
        return;
      }
    }
    std::vector<std::size_t>& neighbours = stored_in_entry_[stored.entry];
    for (const std::size_t i : neighbours) {
      const StoredTensor& other = program_.stored[i];
      if (stored.absent || !WeightTables::share_bytes(other, stored)) continue;
      const FlatTensor& first = program_.tensors[other.tensor.index()];
      if (!WeightTables::same_view(other, stored) || first.role != role) {
        place_.fail("has tensors " + quote(name) + " and " + quote(first.name) +
                    " that overlap in memory without being the same, which is not supported");
      }
      add_name(other.tensor, name, graph_name, scope);
      return;
    }
    stored.tensor = add_tensor(graph_name, role, scope);
    FlatTensor& tensor = program_.tensors[stored.tensor.index()];
    if (tensor.dtype != stored.dtype || !equal_sizes(tensor.sizes, stored.sizes)) {
      place_.fail("stores " + quote(name) + " with another type or size than its graph says");
    }
    if (role != TensorRole::kConstant) {
      const Json* const persistent = find_member(spec, "persistent");
      Parameter parameter{
          .names = {one_line(name)},
          .trainable = role == TensorRole::kParameter && tensor.trainable,
          .dtype = stored.dtype,
          .sizes = stored.sizes,
          .persistent = persistent == nullptr || !persistent->is_boolean() || persistent->get<bool>()};
      tensor.parameter = ParameterId(program_.parameters.size());
      program_.parameters.push_back(std::move(parameter));
    }
    if (stored.absent) absent_.emplace(name, stored.tensor);
    neighbours.push_back(program_.stored.size());
    program_.stored.push_back(std::move(stored));
  }

  // A further name of a stored tensor.
  void add_name(TensorId first, const std::string& name, const std::string& graph_name, Scope& scope) {
    const std::optional<ParameterId> parameter = program_.tensors[first.index()].parameter;
    if (parameter) program_.parameters[parameter->index()].names.push_back(one_line(name));
    if (!scope.tensors.emplace(graph_name, first).second) place_.fail("has two inputs " + quote(graph_name));
  }

  static bool equal_sizes(const std::vector<SizeExpr>& a, const std::vector<std::int64_t>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const SizeExpr& x, std::int64_t y) { return x.constant() == y; });
  }

  void read_outputs(const Json& signature, const Scope& scope) {
    for (const Json& spec : list(signature, "output_specs", place_)) {
      const Tagged kind = tagged(spec, "an output", place_);
      if (kind.tag != "user_output" && kind.tag != "loss_output") {
        place_.fail("has an output of kind " + quote(kind.tag) +
                    ": it was rewritten after its export; save what torch.export.export returns, without "
                    "run_decompositions");
      }
      const Json& argument = member(*kind.value, "arg", place_);
      const Json* const as_tensor = find_member(argument, "as_tensor");
      if (as_tensor == nullptr && kind.tag == "user_output") continue;  // a number or nothing
      const std::string name = text(as_tensor == nullptr ? argument : *as_tensor, "name", place_);
      const TensorId id = tensor_of(scope, name, place_);
      if (std::find(program_.outputs.begin(), program_.outputs.end(), id) == program_.outputs.end()) {
        program_.outputs.push_back(id);
        program_.output_names.push_back(name);
      }
      if (kind.tag == "loss_output") program_.declared_loss = id;
    }
  }

  // -- Tensors --------------------------------------------------------------------------------------------

  std::string unique_name(const std::string& wanted, std::unordered_set<std::string>& taken) {
    std::string name = wanted;
    for (char& c : name) {
      if (static_cast<unsigned char>(c) <= 0x20 ||
          std::string_view("(),:@{}#\"'=").find(c) != std::string_view::npos || c == 0x7f) {
        c = '_';
      }
    }
    if (taken.insert(name).second) return name;
    for (std::size_t& n = suffix_[name];;) {
      std::string candidate = name + "__" + std::to_string(++n);
      if (taken.insert(candidate).second) return candidate;
    }
  }

  TensorId add_tensor(const std::string& name, TensorRole role, Scope& scope) {
    const auto value = scope.tensor_values.find(name);
    if (value == scope.tensor_values.end()) place_.fail("has no sizes for tensor " + quote(name));
    TensorMeta meta = read_tensor_meta(*value->second, sizes_, place_);
    const TensorId id(program_.tensors.size());
    if (!scope.tensors.emplace(name, id).second)
      place_.fail("defines tensor " + quote(name) + " a second time");
    program_.tensors.push_back({.name = unique_name(name, tensor_names_),
                                .role = role,
                                .dtype = meta.dtype,
                                .sizes = std::move(meta.sizes),
                                .strides = std::move(meta.strides),
                                .trainable = meta.requires_grad,
                                .parameter = std::nullopt});
    return id;
  }

  // -- Nodes ----------------------------------------------------------------------------------------------

  // What regions around a node switch on and off.
  struct Setting {
    bool grad_enabled = true;
    std::optional<DType> autocast;
  };

  void read_nodes(const Json& graph, Scope& scope, const Setting& setting, int depth) {
    for (const Json& node : list(graph, "nodes", place_)) {
      const Json* const metadata = find_member(node, "metadata");
      const Json none;
      place_.node = node_name(node);
      place_.source = source_line(metadata == nullptr ? none : *metadata);
      const std::string target = text(node, "target", place_);
      if (target.starts_with("torch.ops.higher_order.")) {
        inline_wrapper(node, target, scope, setting, depth);
      } else {
        read_node(node, target, metadata == nullptr ? none : *metadata, scope, setting);
      }
    }
    place_.node.clear();
    place_.source.clear();
  }

  static std::string node_name(const Json& node) {
    if (const Json* const name = find_member(node, "name"); name != nullptr && name->is_string()) {
      return name->get<std::string>();
    }
    // Older schemas name no node: its first output does.
    if (const Json* const outputs = find_member(node, "outputs");
        outputs != nullptr && outputs->is_array() && !outputs->empty()) {
      for (const char* const kind : {"as_tensor", "as_sym_int"}) {
        const Json* const output = find_member(outputs->front(), kind);
        const Json* const name = output == nullptr ? nullptr : find_member(*output, "name");
        if (name != nullptr && name->is_string()) return name->get<std::string>();
      }
    }
    const Json* const target = find_member(node, "target");
    return target != nullptr && target->is_string() ? target->get<std::string>() : "?";
  }

  // wrap_with_set_grad_enabled(enabled, graph, inputs…), wrap_with_autocast(device, dtype, enabled, cache,
  // graph, inputs…).
  void inline_wrapper(const Json& node, const std::string& target, Scope& scope, Setting setting, int depth) {
    if (place_.source.empty()) place_.source = first_source(node);
    const ProgramPlace here = place_;
    const std::string kind = target.substr(std::string_view("torch.ops.higher_order.").size());
    const bool sets_grad = kind == "wrap_with_set_grad_enabled";
    if (!sets_grad && kind != "wrap_with_autocast") {
      place_.fail("is " + quote(kind) +
                  ": which of its sub-graphs runs, or how often, depends on data, so it cannot " +
                  "be planned; write it with torch.where or a fixed loop");
    }
    if (depth >= kMaxInlining)
      place_.fail("is nested deeper than " + std::to_string(kMaxInlining) + " sub-graphs");
    const Json::array_t& inputs = list(node, "inputs", place_);
    const std::size_t flag_at = sets_grad ? 0 : 2, graph_at = sets_grad ? 1 : 4;
    if (inputs.size() <= graph_at) place_.fail("has too few arguments for " + kind);
    const auto argument = [&](std::size_t i) -> const Json& { return member(inputs[i], "arg", place_); };
    const Json* const flag = find_member(argument(flag_at), "as_bool");
    const Json* const wrapped = find_member(argument(graph_at), "as_graph");
    if (flag == nullptr || !flag->is_boolean() || wrapped == nullptr) {
      place_.fail("does not have the arguments of " + kind);
    }
    if (sets_grad) {
      setting.grad_enabled = flag->get<bool>();
    } else if (const std::string device = text(argument(0), "as_string", place_); devices_.contains(device)) {
      setting.autocast = flag->get<bool>() ? std::optional(autocast_type(device, argument(1))) : std::nullopt;
    }
    const Json& graph = member(*wrapped, "graph", place_);
    Scope inner(graph);
    const Json::array_t& formal = list(graph, "inputs", place_);
    if (formal.size() != inputs.size() - graph_at - 1)
      place_.fail("gives its sub-graph a wrong number of inputs");
    for (std::size_t i = 0; i < formal.size(); ++i) bind(formal[i], argument(graph_at + 1 + i), scope, inner);
    read_nodes(graph, inner, setting, depth + 1);
    place_ = here;
    bind_outputs(list(graph, "outputs", place_), list(node, "outputs", place_), inner, scope);
  }

  // The kinds of device that tensors had when the program was made: autocast for another kind has no effect
  // on them.
  void find_devices(const Scope& scope) {
    for (const auto& [name, value] : scope.tensor_values) {
      const Json* const device = find_member(*value, "device");
      const Json* const type = device == nullptr ? nullptr : find_member(*device, "type");
      if (type != nullptr && type->is_string()) devices_.insert(type->get<std::string>());
    }
  }

  DType autocast_type(const std::string& device, const Json& argument) {
    const Json* const given = find_member(argument, "as_scalar_type");
    if (given == nullptr) return device == "cpu" ? DType::kBF16 : DType::kF16;  // PyTorch's own choice
    const std::optional<DType> dtype = dtype_of(integer(*given, "a dtype", place_));
    if (dtype != DType::kBF16 && dtype != DType::kF16)
      place_.fail("runs under autocast to a type that is neither bf16 nor f16");
    return *dtype;
  }

  // The line of the first node below a wrapper: the wrapper itself may have none.
  static std::string first_source(const Json& wrapper) {
    const Json* const inputs = find_member(wrapper, "inputs");
    if (inputs == nullptr || !inputs->is_array()) return {};
    for (const Json& input : *inputs) {
      const Json* at = &input;
      for (const char* const key : {"arg", "as_graph", "graph", "nodes"})
        at = at == nullptr ? at : find_member(*at, key);
      if (at == nullptr || !at->is_array()) continue;
      for (const Json& node : *at) {
        const Json* const metadata = find_member(node, "metadata");
        std::string source = metadata == nullptr ? std::string() : source_line(*metadata);
        if (!source.empty()) return source;
      }
    }
    return {};
  }

  void bind(const Json& formal, const Json& actual, const Scope& outer, Scope& inner) {
    const Tagged to = tagged(formal, "a sub-graph's input", place_);
    const Tagged from = tagged(actual, "a sub-graph's argument", place_);
    if (to.tag == "as_tensor") {
      if (from.tag != "as_tensor") place_.fail("gives its sub-graph " + quote(from.tag) + " for a tensor");
      inner.tensors.emplace(text(*to.value, "name", place_),
                            tensor_of(outer, text(*from.value, "name", place_), place_));
    } else if (to.tag == "as_sym_int") {
      const std::string name = text(*to.value, "as_name", place_);
      if (inner.sym_ints.contains(name)) return;
      const Json* const source = find_member(*from.value, "as_name");
      const auto known = source != nullptr && source->is_string()
                             ? outer.sym_ints.find(source->get<std::string>())
                             : outer.sym_ints.end();
      if (known != outer.sym_ints.end()) inner.sym_ints.emplace(name, known->second);
    }
  }

  // The tensors of a list of outputs, in order; numbers and absent ones are left out of account.
  std::vector<const Json*> output_tensors(const Json::array_t& outputs) const {
    std::vector<const Json*> result;
    for (const Json& output : outputs) {
      const Tagged value = tagged(output, "an output", place_);
      if (value.tag == "as_tensors") {
        if (!value.value->is_array()) place_.fail("has 'as_tensors' that is not a list");
        for (const Json& element : *value.value) result.push_back(&element);
      } else {
        result.push_back(value.tag == "as_tensor" ? value.value : nullptr);
      }
    }
    return result;
  }

  void bind_outputs(const Json::array_t& inner_outputs, const Json::array_t& outer_outputs,
                    const Scope& inner, Scope& outer) {
    const std::vector<const Json*> from = output_tensors(inner_outputs), to = output_tensors(outer_outputs);
    if (from.size() != to.size()) place_.fail("takes another number of outputs than its sub-graph has");
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (from[i] == nullptr || to[i] == nullptr) continue;
      const TensorId id = tensor_of(inner, text(*from[i], "name", place_), place_);
      const std::string name = text(*to[i], "name", place_);
      if (!outer.tensors.emplace(name, id).second)
        place_.fail("defines tensor " + quote(name) + " a second time");
    }
  }

  // Checks that PyTorch puts into programs. They compute nothing.
  static bool only_checks(const std::string& target) {
    static const std::unordered_set<std::string_view> kChecks = {
        "_assert_async", "_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range",
        "sym_constrain_range_for_size"};
    constexpr std::string_view kAtenPrefix = "torch.ops.aten.";
    if (!target.starts_with(kAtenPrefix)) return false;
    const std::string_view name = std::string_view(target).substr(kAtenPrefix.size());
    return kChecks.contains(name.substr(0, name.find('.')));
  }

  void read_node(const Json& node, const std::string& target, const Json& metadata, Scope& scope,
                 const Setting& setting) {
    const std::uint32_t index = next_index_++;
    const Json::array_t& outputs = list(node, "outputs", place_);
    if (computes_numbers(outputs, scope)) return;
    if (only_checks(target)) return;
    constexpr std::string_view kOps = "torch.ops.";
    const auto overload = target.rfind('.');
    const auto dot = target.find('.', kOps.size());
    if (!target.starts_with(kOps) || dot == std::string::npos || dot == overload) {
      place_.fail("calls " + quote(target) +
                  ", which is no operator, so that only Python can run it; export the model with "
                  "python/espalier_export.py, which resolves torch.vmap");
    }
    FlatNode flat;
    flat.call.target = one_line(target.substr(kOps.size(), dot - kOps.size()) +
                                "::" + target.substr(dot + 1, overload - dot - 1));
    flat.call.overload = one_line(target.substr(overload + 1));
    if (flat.call.overload == "default") flat.call.overload.clear();
    flat.call.original_index = index;
    flat.call.grad_enabled = setting.grad_enabled;
    flat.call.autocast = setting.autocast;
    for (const Json& input : list(node, "inputs", place_)) {
      flat.call.arguments.push_back(
          {text(input, "name", place_),
           ArgumentReader(scope, sizes_, place_).read(member(input, "arg", place_))});
    }
    flat.name = unique_name(place_.node, node_names_);
    for (const Json& output : outputs) flat.call.outputs.push_back(read_output(output, scope));
    flat.module_path = innermost_module(metadata);
    flat.source = place_.source;
    const std::string full_name = flat.call.target + target.substr(overload);
    if (!in_libtorch(flat.call.target) && !notes_.operators.contains(full_name)) {
      place_.fail(
          "calls operator " + quote(flat.call.target) +
          ", which libtorch does not have; export the model with python/espalier_export.py, which replaces "
          "operators that are registered in Python, or write it with torch functions");
    }
    program_.nodes.push_back(std::move(flat));
  }

  // True for sym_size, _operator.mul and the like: all outputs are numbers that follow from the batch. A
  // number that follows from data is refused here.
  bool computes_numbers(const Json::array_t& outputs, const Scope& scope) {
    if (outputs.empty()) return false;
    for (const Json& output : outputs) {
      const Tagged value = tagged(output, "an output", place_);
      if (value.tag == "as_sym_int") {
        ArgumentReader(scope, sizes_, place_).sym_int(*value.value);
      } else if (value.tag != "as_sym_bool" && value.tag != "as_sym_float") {
        return false;
      }
    }
    return true;
  }

  Call::Output read_output(const Json& json, Scope& scope) {
    const Tagged output = tagged(json, "an output", place_);
    const auto one = [&](const Json& element) -> OptionalTensor {
      const Json* name_holder = &element;
      if (const Json* const inner = find_member(element, "as_tensor")) name_holder = inner;
      if (find_member(element, "as_none") != nullptr) return std::nullopt;
      const std::string name = text(*name_holder, "name", place_);
      if (!scope.tensor_values.contains(name) && name.find("_unused_") != std::string::npos)
        return std::nullopt;
      return add_tensor(name, TensorRole::kActivation, scope);
    };
    if (output.tag == "as_tensor" || output.tag == "as_optional_tensor") return {false, {one(*output.value)}};
    if (output.tag == "as_none" || output.tag == "as_sym_int") return {false, {std::nullopt}};
    if (output.tag != "as_tensors" && output.tag != "as_optional_tensors") {
      place_.fail("has an output of kind " + quote(output.tag) + ", which is not supported");
    }
    Call::Output result{.is_list = true, .tensors = {}};
    if (!output.value->is_array()) place_.fail("has " + output.tag + " that is not a list");
    for (const Json& element : *output.value) result.tensors.push_back(one(element));
    return result;
  }

  const Json& model_;
  const ExportNotes& notes_;
  ProgramPlace place_;
  SizeReader sizes_;
  WeightTables weights_;
  std::unordered_map<std::string, std::vector<std::size_t>> stored_in_entry_;  // indices into stored
  std::unordered_map<std::string, TensorId> absent_;  // stored tensors without bytes, by their first name
  std::unordered_set<std::string> devices_;
  FlatProgram program_;
  std::uint32_t next_index_ = 0;
  std::unordered_set<std::string> tensor_names_, node_names_;
  std::unordered_map<std::string, std::size_t> suffix_;
};

}  // namespace

FlatProgram read_program(const Json& model, const std::string& model_name, const ZipReader& archive,
                         const std::string& name, const ExportNotes& notes) {
  return ProgramReader(model, model_name, archive, name, notes).read();
}

}  // namespace espalier
