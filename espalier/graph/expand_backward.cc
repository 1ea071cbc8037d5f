#include "espalier/graph/expand_backward.h"

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "espalier/base/check.h"

namespace espalier {
namespace {

class Names {
 public:
  void add(const std::string& name) { used_.insert(name); }
  std::string fresh(std::string name) {
    while (!used_.insert(name).second) name += '_';
    return name;
  }

 private:
  std::unordered_set<std::string> used_;
};

class Expansion {
 public:
  Expansion(const Graph& forward, const ExpandOptions& options)
      : forward_(forward), options_(options), parts_(forward.parts()), storages_(forward.storage_count()) {}

  Graph run() {
    check_input();
    find_targets();
    find_backward();
    for (Tensor& tensor : parts_.tensors) tensor.requires_grad = false;
    number_groups();
    for (const TensorId seed : seeds_) add_seed(seed);
    for (std::size_t i = forward_.operators().size(); i-- > 0;) {
      if (has_backward_[i]) add_backward(OperatorId(i));
    }
    for (std::size_t p = 0; p < forward_.parameters().size(); ++p) add_update(ParameterId(p));
    add_outputs();
    return Graph(with_colocation(std::move(parts_)));
  }

 private:
  struct Gradient {  // of one target
    std::uint32_t parts = 0;
    std::uint32_t made = 0;
    std::optional<TensorId> sum = {};            // of those made
    std::optional<OperatorId> first_giver = {};  // the forward operator of smallest number that has a part
  };

  const Tensor& tensor(TensorId id) const { return forward_.tensor(id); }
  bool wants_gradient(TensorId id) const { return forward_.tensor(id).requires_grad; }

  void check_input() {
    if (is_training_graph(forward_.operators())) {
      throw InputError("the graph '" + forward_.name() +
                       "' holds backward or update operators already; expected a forward graph");
    }
    if (options_.kept.empty()) return;
    ESP_CHECK(options_.kept.size() == forward_.operators().size(), options_.kept.size());
    for (std::size_t i = 0; i < options_.kept.size(); ++i) {
      const Operator& op = forward_.operators()[i];
      const auto check = [&](const char* what, const std::vector<std::uint32_t>& kept, std::size_t count) {
        if (kept.empty() || kept.back() < count) return;
        throw InputError("operator '" + op.name + "' keeps " + what + " " + std::to_string(kept.back()) +
                         ", but has " + std::to_string(count));
      };
      check("input", options_.kept[i].inputs, op.inputs.size());
      check("output", options_.kept[i].outputs, op.outputs.size());
    }
  }

  // Gradients of all tensors of a parameter add up: the first of them stands for it.
  void find_targets() {
    first_tensor_.resize(forward_.parameters().size());
    target_.reserve(forward_.tensors().size());
    for (std::size_t t = 0; t < forward_.tensors().size(); ++t) {
      const auto parameter = tensor(TensorId(t)).parameter;
      if (!parameter) {
        target_.emplace_back(t);
        continue;
      }
      auto& first = first_tensor_[parameter->index()];
      if (!first) first = TensorId(t);
      target_.push_back(*first);
    }
  }

  // The inputs that get a gradient from an operator's backward: in argument order, each target once.
  std::vector<TensorId> gradients_of(const Operator& op) const {
    std::vector<TensorId> targets;
    for (const TensorId input : op.inputs) {
      const TensorId target = target_[input.index()];
      if (wants_gradient(input) && std::find(targets.begin(), targets.end(), target) == targets.end()) {
        targets.push_back(target);
      }
    }
    return targets;
  }

  void find_backward() {
    gradients_.resize(forward_.tensors().size());
    for (const TensorId output : forward_.loss() ? std::vector{*forward_.loss()} : forward_.parts().outputs) {
      const bool again = std::find(seeds_.begin(), seeds_.end(), target_[output.index()]) != seeds_.end();
      if (!wants_gradient(output) || again) continue;
      seeds_.push_back(target_[output.index()]);
      ++gradients_[seeds_.back().index()].parts;
    }
    if (seeds_.empty()) {
      throw InputError("the graph '" + forward_.name() + "': " +
                       (forward_.loss() ? "the loss requires no gradient" : "no output requires a gradient") +
                       ", so there is no backward");
    }
    has_backward_.resize(forward_.operators().size());
    for (std::size_t i = forward_.operators().size(); i-- > 0;) {
      const Operator& op = forward_.operators()[i];
      has_backward_[i] = std::any_of(op.outputs.begin(), op.outputs.end(), [&](TensorId output) {
        return wants_gradient(output) && gradients_[output.index()].parts > 0;
      });
      if (!has_backward_[i]) continue;
      for (const TensorId target : gradients_of(op)) {
        ++gradients_[target.index()].parts;
        gradients_[target.index()].first_giver = OperatorId(i);  // they descend
      }
    }
    for (const Operator& op : forward_.operators()) operator_names_.add(op.name);
    for (const Tensor& t : forward_.tensors()) tensor_names_.add(t.name);
  }

  void number_groups() {
    if (options_.colocation == ExpandOptions::Colocation::kFree) return;
    std::unordered_set<std::uint32_t> used;
    for (const Operator& op : parts_.operators) {
      if (op.colocation) used.insert(*op.colocation);
    }
    std::uint32_t next = 0;
    for (std::size_t i = 0; i < parts_.operators.size(); ++i) {
      if (!has_backward_[i] || parts_.operators[i].colocation) continue;
      while (!used.insert(next).second) ++next;
      parts_.operators[i].colocation = next;
    }
  }
  std::optional<std::uint32_t> group_of(std::optional<OperatorId> forward) const {
    if (!forward || options_.colocation == ExpandOptions::Colocation::kFree) return std::nullopt;
    return parts_.operators[forward->index()].colocation;
  }

  TensorId add_tensor(const std::string& name, TensorId target, TensorRole role) {
    Tensor gradient;
    gradient.name = tensor_names_.fresh(name);
    gradient.role = role;
    gradient.dtype = tensor(target).dtype;
    gradient.sizes = tensor(target).sizes;
    gradient.storage = StorageId(storages_++);
    gradient.gradient_of = target;
    if (role == TensorRole::kActivation) gradient.producer = OperatorId(parts_.operators.size());
    parts_.tensors.push_back(std::move(gradient));
    return TensorId(parts_.tensors.size() - 1);
  }

  std::string part_name(TensorId target) {
    const Gradient& gradient = gradients_[target.index()];
    const std::string name = tensor(target).name + ".grad";
    return gradient.parts == 1 ? name : name + "." + std::to_string(gradient.made + 1);
  }

  void add_seed(TensorId target) {
    Gradient& gradient = gradients_[target.index()];
    const TensorId one = add_tensor(part_name(target), target, TensorRole::kConstant);
    ++gradient.made;
    gradient.sum = one;
  }

  void add_backward(OperatorId id) {
    const Operator& op = forward_.op(id);
    Operator backward;
    backward.name = operator_names_.fresh(op.name + ".backward");
    backward.target = op.target + ".backward";
    backward.role = OperatorRole::kBackward;
    backward.module_path = op.module_path;
    backward.source = op.source;
    backward.op_class = op.op_class;
    backward.colocation = group_of(id);
    backward.mixes_samples = op.mixes_samples;
    for (const TensorId output : op.outputs) {
      if (const auto sum = gradients_[output.index()].sum) backward.inputs.push_back(*sum);
    }
    for (const TensorId kept : kept_tensors(id)) backward.inputs.push_back(kept);
    const std::vector<TensorId> targets = gradients_of(op);
    for (const TensorId target : targets) {
      backward.outputs.push_back(add_tensor(part_name(target), target, TensorRole::kActivation));
      ++gradients_[target.index()].made;
    }
    share_memory(op, backward);
    const std::vector<TensorId> parts = backward.outputs;
    parts_.operators.push_back(std::move(backward));
    for (std::size_t i = 0; i < targets.size(); ++i) add_part(targets[i], parts[i], id);
  }

  // A view's gradient is a view of its output's gradient where neither has more elements.
  void share_memory(const Operator& op, const Operator& backward) {
    if (op.outputs.size() != 1 || backward.outputs.size() != 1 || !op.mutates.empty()) return;
    const Tensor& from = tensor(op.outputs[0]);
    Tensor& gradient = parts_.tensors[backward.outputs[0].index()];
    const Tensor& to = tensor(*gradient.gradient_of);
    if (from.storage != to.storage || from.dtype != to.dtype || from.elements() != to.elements()) return;
    gradient.storage = parts_.tensors[backward.inputs[0].index()].storage;
    --storages_;
  }

  std::vector<TensorId> kept_tensors(OperatorId id) const {
    const Operator& op = forward_.op(id);
    std::vector<TensorId> kept;
    const auto keep = [&](TensorId t) {
      if (std::find(kept.begin(), kept.end(), t) == kept.end()) kept.push_back(t);
    };
    if (options_.kept.empty()) {
      for (const TensorId t : op.inputs) {
        if (is_floating_point(tensor(t).dtype)) keep(t);
      }
      for (const TensorId t : op.outputs) keep(t);
    } else {
      for (const std::uint32_t i : options_.kept[id.index()].inputs) keep(op.inputs[i]);
      for (const std::uint32_t i : options_.kept[id.index()].outputs) keep(op.outputs[i]);
    }
    return kept;
  }

  // A part of a tensor's gradient came in, from the backward of `giver`.
  void add_part(TensorId target, TensorId part, OperatorId giver) {
    Gradient& gradient = gradients_[target.index()];
    if (!gradient.sum) {
      gradient.sum = part;
      return;
    }
    const bool last = gradient.made == gradient.parts;
    const std::string name = tensor(target).name + ".grad";
    Operator sum;
    sum.role = OperatorRole::kBackward;
    sum.target = "gradient_sum";
    const bool stored = tensor(target).parameter.has_value();
    const auto beside = stored ? gradient.first_giver : tensor(target).producer.value_or(giver);
    sum.module_path = forward_.op(*beside).module_path;
    sum.source = forward_.op(*beside).source;
    sum.colocation = group_of(beside);
    sum.inputs = {*gradient.sum, part};
    sum.outputs = {add_tensor(last ? name : name + ".sum" + std::to_string(gradient.made), target,
                              TensorRole::kActivation)};
    sum.name = operator_names_.fresh(parts_.tensors[sum.outputs[0].index()].name);
    sum.op_class = default_op_class(sum, parts_.tensors);
    gradient.sum = sum.outputs[0];
    parts_.operators.push_back(std::move(sum));
  }

  void add_update(ParameterId id) {
    const Parameter& parameter = forward_.parameter(id);
    const auto first = first_tensor_[id.index()];
    if (!first || !parameter.trainable || !gradients_[first->index()].sum) return;
    const Gradient& gradient = gradients_[first->index()];
    Operator update;
    update.name = operator_names_.fresh(parameter.names[0] + ".update");
    update.target = "update";
    update.role = OperatorRole::kUpdate;
    update.inputs = {*first, *gradient.sum};
    update.mutates = {*first};
    update.op_class = default_op_class(update, parts_.tensors);
    update.colocation = group_of(gradient.first_giver);
    if (gradient.first_giver) update.module_path = forward_.op(*gradient.first_giver).module_path;
    parts_.operators.push_back(std::move(update));
  }

  void add_outputs() {
    for (std::size_t t = 0; t < forward_.tensors().size(); ++t) {
      const auto sum = gradients_[t].sum;
      if (sum && tensor(TensorId(t)).role == TensorRole::kInput) parts_.outputs.push_back(*sum);
    }
  }

  const Graph& forward_;
  const ExpandOptions& options_;
  GraphParts parts_;
  std::size_t storages_;
  Names operator_names_, tensor_names_;
  std::vector<TensorId> target_;                       // by tensor: whose gradient its own is a part of
  std::vector<std::optional<TensorId>> first_tensor_;  // by parameter
  std::vector<Gradient> gradients_;                    // by tensor; of targets
  std::vector<TensorId> seeds_;
  std::vector<bool> has_backward_;  // by operator
};

}  // namespace

Graph expand_backward(const Graph& forward, const ExpandOptions& options) {
  return Expansion(forward, options).run();
}

}  // namespace espalier
