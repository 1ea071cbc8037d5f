#include "espalier/frontend/tensor_flow.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include "espalier/base/check.h"
#include "espalier/cost/operator_table.h"
#include "espalier/frontend/sample_mixing.h"

namespace espalier {
namespace {

// Disjoint sets; the smallest member stands for its set.
class Sets {
 public:
  explicit Sets(std::size_t size) : parent_(size) {
    std::iota(parent_.begin(), parent_.end(), std::size_t{0});
  }
  std::size_t find(std::size_t x) {
    while (parent_[x] != x) x = parent_[x] = parent_[parent_[x]];
    return x;
  }
  void join(std::size_t a, std::size_t b) {
    a = find(a), b = find(b);
    parent_[std::max(a, b)] = std::min(a, b);
  }

 private:
  std::vector<std::size_t> parent_;
};

const Argument* find_argument(const Call& call, std::string_view name) {
  const auto found = std::find_if(call.arguments.begin(), call.arguments.end(),
                                  [&](const Argument& argument) { return argument.name == name; });
  return found == call.arguments.end() ? nullptr : &*found;
}

std::optional<bool> flag(const Call& call, std::string_view name) {
  const Argument* const argument = find_argument(call, name);
  const bool* const value = argument == nullptr ? nullptr : std::get_if<bool>(&argument->value);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<double> number(const Call& call, std::string_view name) {
  const Argument* const argument = find_argument(call, name);
  if (argument == nullptr) return std::nullopt;
  if (const double* const real = std::get_if<double>(&argument->value)) return *real;
  const SizeExpr* const whole = std::get_if<SizeExpr>(&argument->value);
  if (whole == nullptr || !whole->constant()) return std::nullopt;
  return static_cast<double>(*whole->constant());
}

// The tensors that an argument holds, in order.
std::vector<TensorId> tensors_of(const ArgumentValue& value) {
  if (const TensorId* const one = std::get_if<TensorId>(&value)) return {*one};
  std::vector<TensorId> result;
  if (const auto* const several = std::get_if<std::vector<OptionalTensor>>(&value)) {
    for (const OptionalTensor& tensor : *several) {
      if (tensor) result.push_back(*tensor);
    }
  }
  return result;
}

bool dropout_active(const Call& call) {
  const bool training = flag(call, "train").value_or(flag(call, "training").value_or(false));
  return training && number(call, "p").value_or(number(call, "dropout").value_or(1.0)) > 0;
}

bool statistics_active(const Call& call) {
  return flag(call, "training").value_or(flag(call, "use_input_stats").value_or(true));
}

// Sizes and strides at one batch. Unsigned, so that absurd sizes wrap instead of overflowing.
struct Concrete {
  std::vector<std::uint64_t> sizes, strides;
};

// Whether elements follow each other in memory in the order of their indices. Dimensions of size 1 may have
// any stride.
bool contiguous(const Concrete& tensor) {
  std::uint64_t expected = 1;
  for (std::size_t i = tensor.sizes.size(); i-- > 0;) {
    if (tensor.sizes[i] == 0) return true;
    if (tensor.sizes[i] == 1) continue;
    if (tensor.strides[i] != expected) return false;
    expected *= tensor.sizes[i];
  }
  return true;
}

// Whether `sizes` can be laid over the memory of `from`: its dimensions form runs that are contiguous in
// themselves, and the new sizes must split at the ends of these runs.
bool view_possible(const Concrete& from, const std::vector<std::uint64_t>& sizes) {
  std::vector<std::uint64_t> runs;
  std::uint64_t outer_stride = 0;
  for (std::size_t i = 0; i < from.sizes.size(); ++i) {
    if (from.sizes[i] == 0) return true;
    if (from.sizes[i] == 1) continue;
    if (!runs.empty() && outer_stride == from.sizes[i] * from.strides[i]) {
      runs.back() *= from.sizes[i];
    } else {
      runs.push_back(from.sizes[i]);
    }
    outer_stride = from.strides[i];
  }
  std::size_t run = 0;
  std::uint64_t product = 1;
  for (const std::uint64_t size : sizes) {
    if (size == 1) continue;
    product *= size;
    if (run >= runs.size() || product > runs[run]) return false;
    if (product == runs[run]) ++run, product = 1;
  }
  return run == runs.size() && product == 1;
}

class Flow {
 public:
  Flow(const FlatProgram& program, const SchemaTable& schemas)
      : program_(program),
        schemas_(schemas),
        probe_(std::clamp(BatchSize(7), program.batch.min, program.batch.max)),
        storages_(program.tensors.size()),
        aliases_(program.tensors.size()),
        requires_grad_(program.tensors.size()),
        producer_(program.tensors.size()),
        mixes_(nodes_that_mix_samples(program)) {}

  GraphParts derive() {
    parts_.batch = program_.batch;
    parts_.parameters = program_.parameters;
    parts_.outputs = program_.outputs;
    for (std::size_t i = 0; i < program_.tensors.size(); ++i)
      requires_grad_[i] = program_.tensors[i].trainable && program_.tensors[i].role == TensorRole::kParameter;
    for (std::size_t i = 0; i < program_.nodes.size(); ++i) add_operator(i);
    colocate_late_readers();
    mark_duplicable();
    add_tensors();
    name_classes();
    return with_colocation(std::move(parts_));
  }

 private:
  const FlatTensor& tensor(TensorId id) const { return program_.tensors[id.index()]; }

  Concrete concrete(TensorId id) const {
    Concrete result;
    for (const SizeExpr& size : tensor(id).sizes)
      result.sizes.push_back(static_cast<std::uint64_t>(size.at(probe_)));
    for (const SizeExpr& stride : tensor(id).strides)
      result.strides.push_back(static_cast<std::uint64_t>(stride.at(probe_)));
    return result;
  }

  // -- One operator ---------------------------------------------------------------------------------------

  void add_operator(std::size_t index) {
    const FlatNode& node = program_.nodes[index];
    const Call& call = node.call;
    const std::string_view name = std::string_view(call.target).substr(call.target.find("::") + 2);
    const AtenOperator* const facts = call.target.starts_with("aten::") ? find_aten(name) : nullptr;
    Operator op;
    op.name = node.name;
    op.target = call.target;
    op.target.replace(op.target.find("::"), 2, ".");
    op.target += "." + (call.overload.empty() ? std::string("default") : call.overload);
    op.module_path = node.module_path;
    op.source = node.source;
    const SchemaFacts* const schema = facts == nullptr ? find_schema(call) : nullptr;
    op.known = facts != nullptr || schema != nullptr;
    for (const Argument& argument : call.arguments) {
      for (const TensorId id : tensors_of(argument.value)) op.inputs.push_back(id);
    }
    for (const Call::Output& output : call.outputs) {
      for (const OptionalTensor& id : output.tensors) {
        if (id) op.outputs.push_back(*id), producer_[id->index()] = index;
      }
    }
    if (schema != nullptr) {
      apply_schema(call, *schema, op);
    } else {
      note_writes(call, name, facts, op);
      note_aliases(call, name, facts, op);
    }
    note_gradients(call, facts, op);
    op.random = schema != nullptr ? schema->random : draws(call, facts);
    op.mixes_samples = mixes_[index];
    parts_.operators.push_back(std::move(op));
  }

  void share(TensorId a, TensorId b) {
    storages_.join(a.index(), b.index());
    aliases_.join(a.index(), b.index());
  }

  const SchemaFacts* find_schema(const Call& call) const {
    const auto found =
        schemas_.find(call.target + "." + (call.overload.empty() ? std::string("default") : call.overload));
    return found == schemas_.end() ? nullptr : &found->second;
  }

  // A written argument that is returned is the output itself; another one that shares memory may do so.
  void apply_schema(const Call& call, const SchemaFacts& schema, Operator& op) {
    const auto tensors = [&](const std::string& name) {
      const Argument* const argument = find_argument(call, name);
      return argument == nullptr ? std::vector<TensorId>() : tensors_of(argument->value);
    };
    const auto written = [&](const std::string& name) {
      return std::find(schema.writes.begin(), schema.writes.end(), name) != schema.writes.end();
    };
    for (const std::string& name : schema.writes) {
      for (const TensorId id : tensors(name)) op.mutates.push_back(id);
    }
    finish_writes(op);
    for (std::size_t i = 0; i < call.outputs.size() && i < schema.shares.size(); ++i) {
      for (const std::string& name : schema.shares[i]) {
        const std::vector<TensorId> from = tensors(name);
        for (const OptionalTensor& to : call.outputs[i].tensors) {
          if (!to) continue;
          for (const TensorId id : from) aliases_.join(to->index(), id.index());
          if (written(name) && from.size() == 1 && !call.outputs[i].is_list) share(*to, from.front());
        }
      }
    }
  }

  static void finish_writes(Operator& op) {
    std::sort(op.mutates.begin(), op.mutates.end());
    op.mutates.erase(std::unique(op.mutates.begin(), op.mutates.end()), op.mutates.end());
  }

  void note_writes(const Call& call, std::string_view name, const AtenOperator* facts, Operator& op) {
    if (writes_first_argument(name) && !call.arguments.empty()) {
      op.mutates = tensors_of(call.arguments.front().value);  // one, or the list of _foreach_add_
      for (std::size_t i = 0; i < op.mutates.size() && i < op.outputs.size(); ++i)
        share(op.outputs[i], op.mutates[i]);
    }
    if (facts != nullptr && facts->updates_statistics && statistics_active(call)) {
      for (const std::string_view statistic : {"running_mean", "running_var"}) {
        const Argument* const argument = find_argument(call, statistic);
        const TensorId* const id = argument == nullptr ? nullptr : std::get_if<TensorId>(&argument->value);
        if (id != nullptr) op.mutates.push_back(*id);
      }
    }
    if (call.overload == "out" || call.overload.ends_with("_out")) {
      std::size_t output = 0;
      for (const Argument& argument : call.arguments) {
        if (!argument.name.starts_with("out")) continue;
        for (const TensorId id : tensors_of(argument.value)) {
          op.mutates.push_back(id);
          if (output < op.outputs.size()) share(op.outputs[output++], id);
        }
      }
    }
    finish_writes(op);
  }

  void note_aliases(const Call& call, std::string_view name, const AtenOperator* facts, const Operator& op) {
    if (op.inputs.empty()) return;
    if (facts == nullptr) {  // perhaps a view of anything it reads
      for (const TensorId output : op.outputs) {
        for (const TensorId input : op.inputs) aliases_.join(output.index(), input.index());
      }
      return;
    }
    for (std::size_t i = 0; i < op.outputs.size(); ++i) {
      const bool by_position = facts->alias == AtenAlias::kBroadcast;
      if (by_position && i >= op.inputs.size()) break;
      const TensorId input = by_position ? op.inputs[i] : op.inputs.front();
      if (shares_memory(call, name, *facts, input, op.outputs[i])) share(op.outputs[i], input);
    }
  }

  bool shares_memory(const Call& call, std::string_view name, const AtenOperator& facts, TensorId input,
                     TensorId output) const {
    switch (facts.alias) {
      case AtenAlias::kFresh:
        return false;
      case AtenAlias::kView:
      case AtenAlias::kBroadcast:
        return true;
      case AtenAlias::kIfStrided:
        return name == "contiguous" ? contiguous(concrete(input))
                                    : view_possible(concrete(input), concrete(output).sizes);
      case AtenAlias::kIfSameType: {
        const Argument* const format = find_argument(call, "memory_format");
        const bool same_format = format == nullptr || std::holds_alternative<NoArgument>(format->value) ||
                                 format->value == ArgumentValue(MemoryFormatArgument::kPreserve);
        return tensor(input).dtype == tensor(output).dtype && !flag(call, "copy").value_or(false) &&
               same_format;
      }
      case AtenAlias::kIfInactive:
        return !dropout_active(call);
    }
    return true;
  }

  void note_gradients(const Call& call, const AtenOperator* facts, const Operator& op) {
    const bool reads = std::any_of(op.inputs.begin(), op.inputs.end(),
                                   [&](TensorId id) { return requires_grad_[id.index()]; });
    if (!reads || !call.grad_enabled || (facts != nullptr && !facts->differentiable)) return;
    for (const TensorId id : op.outputs) {
      requires_grad_[id.index()] = is_floating_point(tensor(id).dtype);
    }
    if (facts != nullptr && facts->updates_statistics) return;
    // x.add_(w) makes x itself require a gradient, for whoever reads it by its old name.
    for (const TensorId id : op.mutates) {
      if (tensor(id).role == TensorRole::kActivation && is_floating_point(tensor(id).dtype))
        requires_grad_[id.index()] = true;
    }
  }

  static bool draws(const Call& call, const AtenOperator* facts) {
    if (facts == nullptr) return false;
    switch (facts->random) {
      case AtenRandom::kNever:
        return false;
      case AtenRandom::kAlways:
        return true;
      case AtenRandom::kDropout:
        return dropout_active(call);
      case AtenRandom::kAttention:
        return number(call, "dropout_p").value_or(0) > 0;
    }
    return true;
  }

  // -- Mutation -------------------------------------------------------------------------------------------

  // The last operator that writes each set of aliases, by the set's representative.
  std::unordered_map<std::size_t, std::size_t> last_writes() {
    std::unordered_map<std::size_t, std::size_t> last;
    for (std::size_t i = 0; i < parts_.operators.size(); ++i) {
      for (const TensorId id : parts_.operators[i].mutates) last[aliases_.find(id.index())] = i;
    }
    return last;
  }

  // A reader behind the last write of a tensor that was made before it sees what the write left there: it
  // stands with the writer. The rest of the rule is with_colocation's.
  void colocate_late_readers() {
    const auto last = last_writes();
    std::vector<Operator>& operators = parts_.operators;
    Sets groups(operators.size());
    std::vector<bool> grouped(operators.size());
    for (std::size_t i = 0; i < operators.size(); ++i) {
      for (const TensorId id : operators[i].inputs) {
        const auto write = last.find(aliases_.find(id.index()));
        if (write == last.end() || i <= write->second) continue;
        const std::optional<std::size_t> made = producer_[id.index()];
        if (made && *made >= write->second) continue;
        groups.join(i, write->second);
        grouped[i] = grouped[write->second] = true;
      }
    }
    for (std::size_t i = 0; i < operators.size(); ++i) {
      if (grouped[i]) operators[i].colocation = static_cast<std::uint32_t>(groups.find(i));
    }
  }

  void mark_duplicable() {
    const auto written = last_writes();
    const auto untouched = [&](TensorId id) { return !written.contains(aliases_.find(id.index())); };
    for (Operator& op : parts_.operators) {
      const auto readable = [&](TensorId id) {
        if (!untouched(id)) return false;
        const std::optional<std::size_t> made = producer_[id.index()];
        return made ? parts_.operators[*made].duplicable : tensor(id).role != TensorRole::kParameter;
      };
      const auto plain = [&](TensorId id) { return untouched(id) && !requires_grad_[id.index()]; };
      op.duplicable = op.known && !op.random && op.mutates.empty() && !op.outputs.empty() &&
                      std::all_of(op.inputs.begin(), op.inputs.end(), readable) &&
                      std::all_of(op.outputs.begin(), op.outputs.end(), plain);
    }
  }

  // -- The graph ------------------------------------------------------------------------------------------

  void add_tensors() {
    std::unordered_map<std::size_t, StorageId> number;
    for (std::size_t i = 0; i < program_.tensors.size(); ++i) {
      const FlatTensor& flat = program_.tensors[i];
      const StorageId next(number.size());
      Tensor tensor{.name = flat.name,
                    .role = flat.role,
                    .dtype = flat.dtype,
                    .sizes = flat.sizes,
                    .requires_grad = requires_grad_[i],
                    .storage = number.emplace(storages_.find(i), next).first->second,
                    .producer = std::nullopt,
                    .parameter = flat.parameter};
      if (producer_[i]) tensor.producer = OperatorId(*producer_[i]);
      parts_.tensors.push_back(std::move(tensor));
    }
  }

  // Equal classes cost the same: target, types, sizes, memory order and gradient of the tensors read, and all
  // other arguments. "aten.linear.default(f32[b,16],f32[8,16]',f32[8]')": ' marks a gradient, ~ an order of
  // dimensions in memory other than the plain one.
  void name_classes() {
    for (std::size_t i = 0; i < parts_.operators.size(); ++i) {
      Operator& op = parts_.operators[i];
      std::string name = op.target + "(";
      const char* separator = "";
      for (const Argument& argument : program_.nodes[i].call.arguments) {
        const std::string value = class_text(argument.value);
        if (value.empty() || argument.name == "pin_memory") continue;
        name += separator + (holds_tensors(argument.value) ? value : argument.name + "=" + value);
        separator = ",";
      }
      const Call& call = program_.nodes[i].call;
      op.op_class = name + (call.grad_enabled ? ")" : ")nograd");
      if (call.autocast) op.op_class += "autocast=" + std::string(to_text(*call.autocast));
    }
  }

  static bool holds_tensors(const ArgumentValue& value) {
    return std::holds_alternative<TensorId>(value) ||
           std::holds_alternative<std::vector<OptionalTensor>>(value);
  }

  std::string tensor_text(TensorId id) const {
    const FlatTensor& flat = tensor(id);
    std::string result(to_text(flat.dtype));
    result += '[';
    for (std::size_t i = 0; i < flat.sizes.size(); ++i) result += (i > 0 ? "," : "") + flat.sizes[i].text();
    result += ']';
    const Concrete shape = concrete(id);
    if (!contiguous(shape)) {
      result += '~';
      std::vector<std::size_t> order(shape.strides.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::stable_sort(order.begin(), order.end(),
                       [&](std::size_t a, std::size_t b) { return shape.strides[a] > shape.strides[b]; });
      for (const std::size_t dim : order) result += shape.strides[dim] == 0 ? "x" : std::to_string(dim);
    }
    if (requires_grad_[id.index()]) result += '\'';
    return result;
  }

  static std::string real_text(double value) {
    char buffer[40];
    const auto [end, error] = std::to_chars(std::begin(buffer), std::end(buffer), value);
    return error == std::errc() ? std::string(buffer, end) : "?";
  }

  template <class T, class F>
  static std::string list_text(const std::vector<T>& values, F&& print) {
    std::string result = "[";
    for (std::size_t i = 0; i < values.size(); ++i) result += (i > 0 ? "," : "") + print(values[i]);
    return result + "]";
  }

  // Empty for what does not change the cost.
  std::string class_text(const ArgumentValue& value) const {
    const auto size = [](const SizeExpr& s) { return s.text(); };
    const auto truth = [](bool b) { return std::string(b ? "true" : "false"); };
    if (const auto* id = std::get_if<TensorId>(&value)) return tensor_text(*id);
    if (const auto* ids = std::get_if<std::vector<OptionalTensor>>(&value)) {
      return list_text(*ids,
                       [&](const OptionalTensor& id) { return id ? tensor_text(*id) : std::string("none"); });
    }
    if (const auto* s = std::get_if<SizeExpr>(&value)) return size(*s);
    if (const auto* s = std::get_if<std::vector<SizeExpr>>(&value)) return list_text(*s, size);
    if (const auto* d = std::get_if<double>(&value)) return real_text(*d);
    if (const auto* d = std::get_if<std::vector<double>>(&value)) return list_text(*d, real_text);
    if (const auto* b = std::get_if<bool>(&value)) return truth(*b);
    if (const auto* b = std::get_if<std::vector<bool>>(&value)) return list_text(*b, truth);
    if (const auto* d = std::get_if<DType>(&value)) return std::string(to_text(*d));
    if (const auto* m = std::get_if<MemoryFormatArgument>(&value))
      return "format" + std::to_string(static_cast<int>(*m));
    const auto* text = std::get_if<std::string>(&value);
    if (text == nullptr) return {};
    std::string safe = text->substr(0, 100);
    for (char& c : safe) {
      if (static_cast<unsigned char>(c) < 0x21 || c == '"' || c == 0x7f) c = '_';
    }
    return safe;
  }

  const FlatProgram& program_;
  const SchemaTable& schemas_;
  BatchSize probe_;  // where sizes and strides are compared: no usual size, so nothing agrees by chance
  Sets storages_;    // surely the same memory
  Sets aliases_;     // possibly the same memory
  std::vector<bool> requires_grad_;                   // by tensor
  std::vector<std::optional<std::size_t>> producer_;  // by tensor
  std::vector<bool> mixes_;                           // by node
  GraphParts parts_;
};

}  // namespace

GraphParts derive_graph(const FlatProgram& program, const SchemaTable& schemas) {
  return Flow(program, schemas).derive();
}

std::optional<bool> training_flags(const FlatProgram& program) {
  std::optional<bool> result;
  for (const FlatNode& node : program.nodes) {
    for (const std::string_view name : {"train", "training"}) {
      if (const std::optional<bool> value = flag(node.call, name)) result = result.value_or(false) || *value;
    }
  }
  return result;
}

}  // namespace espalier
