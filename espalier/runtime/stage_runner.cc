#include "espalier/runtime/stage_runner.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <limits>
#include <set>

#include "espalier/base/check.h"
#include "espalier/runtime/blame.h"
#include "espalier/runtime/recomputed_operators.h"

namespace espalier {
namespace {

bool contains(const std::vector<OperatorId>& sorted, OperatorId id) {
  return std::binary_search(sorted.begin(), sorted.end(), id);
}

void add_once(std::vector<TensorId>& list, TensorId id) {
  if (std::find(list.begin(), list.end(), id) == list.end()) list.push_back(id);
}

bool has_gradients(at::ScalarType type) {
  return at::isFloatingType(type) || at::isComplexType(type);
}

// Where a gradient leaves a segment's graph. The engine calls it once, with the sum of all that arrived.
class Entry final : public torch::autograd::Node {
 public:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    gradient_ = std::move(gradients.at(0));
    return {};
  }
  at::Tensor take() { return std::exchange(gradient_, at::Tensor()); }

 private:
  at::Tensor gradient_;
};

// A template because nodes are owned by another pointer type in torch 2.11.
template <class Edge>
Edge make_entry(const at::Tensor& value) {
  using Pointer = decltype(Edge::function);
  Pointer node;
  if constexpr (requires {
                  c10::make_intrusive<Entry>().get();
                  Pointer(c10::make_intrusive<Entry>());
                }) {
    node = Pointer(c10::make_intrusive<Entry>());
  } else {
    node = Pointer(new Entry());
  }
  const std::uint32_t number = node->add_input_metadata(value);
  Edge edge(node, number);
  torch::autograd::impl::set_gradient_edge(value, edge);
  return edge;
}

Entry& entry_of(const torch::autograd::Edge& edge) {
  return static_cast<Entry&>(*edge.function);
}

}  // namespace

StageRunner::StageRunner(const Program& program, const Session& session, Holding& holding,
                         Interface interface)
    : program_(program), interface_(std::move(interface)) {
  const Graph& graph = program.graph();
  base_.resize(graph.tensors().size());
  std::map<ParameterId, at::Tensor> held;
  for (const auto* list : {&holding.parameters, &holding.buffers, &holding.shared}) {
    for (const Variable& variable : *list) {
      held[variable.id] = variable.value;
      if (variable.value.requires_grad()) trained_.push_back(variable.value);
    }
  }
  mutated_ = mutated_by(graph, interface_.operators);
  for (const OperatorId op : interface_.operators) {
    for (const TensorId id : graph.op(op).inputs) {
      const Tensor& tensor = graph.tensor(id);
      if (tensor.parameter) {
        ESP_CHECK(held.contains(*tensor.parameter), tensor.name);
        base_[id.index()] = held[*tensor.parameter];
      } else if (tensor.role == TensorRole::kConstant) {
        const at::Tensor& value = session.constant(id);
        ESP_CHECK(value.defined(), tensor.name);
        base_[id.index()] = value;
        if (mutated_[id.index()]) add_once(fresh_, id);
      }
    }
  }
  const auto& inputs = program.exported().inputs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto readers = graph.readers(inputs[i].tensor);
    if (std::any_of(readers.begin(), readers.end(),
                    [&](OperatorId op) { return contains(interface_.operators, op); })) {
      inputs_.push_back(i);
    }
  }
  cut_into_segments();
  find_lifetimes();
}

std::vector<ParameterId> StageRunner::parameters_of(const Graph& graph,
                                                    const std::vector<OperatorId>& operators) {
  std::set<ParameterId> read;
  for (const OperatorId op : operators) {
    for (const TensorId id : graph.op(op).inputs) {
      if (graph.tensor(id).parameter) read.insert(*graph.tensor(id).parameter);
    }
  }
  return {read.begin(), read.end()};
}

bool StageRunner::recomputes() const {
  return std::any_of(segments_.begin(), segments_.end(), [](const Segment& s) { return s.recomputed; });
}

std::vector<std::size_t> StageRunner::segments_of(const Graph& graph,
                                                  const std::vector<OperatorId>& operators,
                                                  const std::vector<OperatorId>& recompute) {
  const std::vector<bool> recomputed = recomputed_operators(graph, operators, recompute);
  std::vector<std::size_t> segments(operators.size());
  for (std::size_t i = 1; i < operators.size(); ++i) {
    segments[i] = segments[i - 1] + (recomputed[i] != recomputed[i - 1] ? 1 : 0);
  }
  return segments;
}

void StageRunner::cut_into_segments() {
  const Graph& graph = program_.graph();
  const std::vector<bool> recomputed =
      recomputed_operators(graph, interface_.operators, interface_.recompute);
  std::map<TensorId, std::size_t> made_in;
  for (std::size_t i = 0; i < interface_.operators.size(); ++i) {
    const OperatorId op = interface_.operators[i];
    if (segments_.empty() || segments_.back().recomputed != recomputed[i]) {
      segments_.push_back(
          {.operators = {}, .recomputed = recomputed[i], .enters = {}, .leaves = {}, .dead_after = {}});
    }
    segments_.back().operators.push_back(op);
    for (const TensorId id : graph.op(op).outputs) made_in[id] = segments_.size() - 1;
    for (const TensorId id : graph.op(op).inputs) {
      if (graph.tensor(id).role != TensorRole::kActivation) continue;
      const auto made = made_in.find(id);
      if (made != made_in.end() && made->second == segments_.size() - 1) continue;
      add_once(segments_.back().enters, id);
      if (made != made_in.end()) add_once(segments_[made->second].leaves, id);
    }
  }
  if (segments_.empty()) segments_.emplace_back();
  std::vector<TensorId> leaving = interface_.sent;
  if (graph.loss()) leaving.push_back(*graph.loss());
  for (const TensorId id : leaving) {
    const auto made = made_in.find(id);
    if (made != made_in.end()) add_once(segments_[made->second].leaves, id);
  }
}

void StageRunner::find_lifetimes() {
  const Graph& graph = program_.graph();
  std::map<TensorId, std::pair<std::size_t, std::size_t>> last_use;  // segment, operator
  for (std::size_t s = 0; s < segments_.size(); ++s) {
    Segment& segment = segments_[s];
    segment.dead_after.resize(segment.operators.size());
    for (std::size_t i = 0; i < segment.operators.size(); ++i) {
      const Operator& op = graph.op(segment.operators[i]);
      for (const TensorId id : op.inputs) last_use[id] = {s, i};
      for (const TensorId id : op.outputs) last_use[id] = {s, i};
    }
  }
  std::set<TensorId> kept(interface_.sent.begin(), interface_.sent.end());
  if (graph.loss()) kept.insert(*graph.loss());
  for (const auto& [id, place] : last_use) {
    const TensorRole role = graph.tensor(id).role;
    if (kept.contains(id) || (role != TensorRole::kActivation && role != TensorRole::kInput)) continue;
    segments_[place.first].dead_after[place.second].push_back(id);
  }
}

std::vector<std::uint64_t> StageRunner::run(const Segment& segment, Tensors& tensors, const RandomKey& key) {
  std::vector<std::uint64_t> first_nodes;
  first_nodes.reserve(segment.operators.size());
  for (std::size_t i = 0; i < segment.operators.size(); ++i) {
    const OperatorId op = segment.operators[i];
    if (observer_ != nullptr) observer_->before(op, tensors);
    first_nodes.push_back(at::sequence_number::peek());
    program_.call(op, tensors, key);
    if (observer_ != nullptr) observer_->after(op, tensors);
    for (const TensorId id : segment.dead_after[i]) {
      if (std::find(segment.leaves.begin(), segment.leaves.end(), id) == segment.leaves.end()) {
        tensors[id.index()].reset();
      }
    }
  }
  return first_nodes;
}

Tensors StageRunner::start(const std::vector<at::Tensor>& inputs) const {
  Tensors tensors = base_;
  for (const TensorId id : fresh_) tensors[id.index()] = base_[id.index()].clone();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const TensorId id = program_.exported().inputs[inputs_[i]].tensor;
    tensors[id.index()] = mutated_[id.index()] ? inputs[i].clone() : inputs[i];
  }
  return tensors;
}

// Runs a segment with autograd on. Its entered values are in `tensors`; they become the start of a graph.
void StageRunner::record(const Segment& segment, Live& live, Tensors& tensors, const RandomKey& key) {
  live.entries.clear();
  for (const TensorId id : segment.enters) {
    at::Tensor& value = tensors[id.index()];
    ESP_CHECK(value.defined(), program_.graph().tensor(id).name);
    const bool wanted = program_.graph().tensor(id).requires_grad && has_gradients(value.scalar_type());
    value = value.detach();
    if (mutated_[id.index()]) value = value.clone();
    live.entries.push_back(wanted ? make_entry<torch::autograd::Edge>(value) : torch::autograd::Edge());
  }
  live.first_nodes = run(segment, tensors, key);
  live.left.clear();
  for (const TensorId id : segment.leaves) {
    const at::Tensor& value = tensors[id.index()];
    live.left.push_back(value.requires_grad() ? torch::autograd::impl::gradient_edge(value)
                                              : torch::autograd::Edge());
  }
  live.recorded = true;
}

std::vector<at::Tensor> StageRunner::forward(const RandomKey& key, const std::vector<at::Tensor>& inputs,
                                             const std::vector<at::Tensor>& received) {
  ESP_CHECK(inputs.size() == inputs_.size() && received.size() == interface_.received.size());
  ESP_CHECK(!alive_.contains(key.micro_batch), key.micro_batch);
  Tensors tensors = start(inputs);
  for (std::size_t i = 0; i < received.size(); ++i) tensors[interface_.received[i].index()] = received[i];

  MicroBatch& batch = alive_[key.micro_batch];
  if (recomputes()) batch.inputs = inputs;
  for (const Segment& segment : segments_) {
    Live& live = batch.segments.emplace_back();
    if (segment.recomputed) {
      for (const TensorId id : segment.enters) live.values.push_back(tensors[id.index()].detach());
      const at::NoGradGuard no_grad;
      run(segment, tensors, key);
    } else {
      record(segment, live, tensors, key);
    }
  }
  std::vector<at::Tensor> sent;
  for (const TensorId id : interface_.sent) {
    ESP_CHECK(tensors[id.index()].defined(), program_.graph().tensor(id).name);
    sent.push_back(tensors[id.index()].detach());
  }
  const std::optional<TensorId> loss = program_.graph().loss();
  if (loss && tensors[loss->index()].defined()) batch.loss = tensors[loss->index()].detach();
  return sent;
}

at::Tensor StageRunner::loss(std::uint64_t micro_batch) const {
  const auto found = alive_.find(micro_batch);
  return found == alive_.end() ? at::Tensor() : found->second.loss;
}

void StageRunner::recompute(const RandomKey& key) {
  MicroBatch& batch = alive_.at(key.micro_batch);
  for (std::size_t s = 0; s < segments_.size(); ++s) {
    const Segment& segment = segments_[s];
    Live& live = batch.segments[s];
    if (live.recorded) continue;
    Tensors tensors = start(batch.inputs);
    for (std::size_t i = 0; i < segment.enters.size(); ++i) {
      tensors[segment.enters[i].index()] = std::move(live.values[i]);
    }
    live.values.clear();
    record(segment, live, tensors, key);
  }
}

// The operator whose forward pass made an autograd node.
std::string StageRunner::describe_backward(const Segment& segment, const Live& live,
                                           std::optional<std::uint64_t> node) const {
  const auto behind = node ? std::upper_bound(live.first_nodes.begin(), live.first_nodes.end(), *node)
                           : live.first_nodes.begin();
  if (node == std::numeric_limits<std::uint64_t>::max()) return "backward, adding up a parameter's gradient";
  if (behind == live.first_nodes.begin()) return "backward";
  const auto place = static_cast<std::size_t>(behind - live.first_nodes.begin() - 1);
  return "backward of " + program_.describe(segment.operators[place]);
}

StageRunner::Roots StageRunner::take_roots(const Segment& segment, Live& live, const Gradients& gradients) {
  Roots roots;
  for (std::size_t i = 0; i < segment.leaves.size(); ++i) {
    const auto gradient = gradients.find(segment.leaves[i]);
    if (gradient == gradients.end() || !gradient->second.defined() || !live.left[i].is_valid()) continue;
    roots.edges.push_back(std::move(live.left[i]));
    roots.gradients.push_back(gradient->second);
  }
  live.left.clear();
  return roots;
}

template <class Work>
void StageRunner::blamed(const Segment& segment, const Live& live, const Work& work) const {
  const BackwardWatch watch;
  try {
    work();
  } catch (const std::exception& error) {
    throw_blamed(describe_backward(segment, live, watch.last_node()), error);
  }
}

namespace {

void add_to(std::map<TensorId, at::Tensor>& gradients, TensorId id, const at::Tensor& gradient) {
  if (!gradient.defined()) return;
  at::Tensor& sum = gradients[id];
  sum = sum.defined() ? sum.add(gradient) : gradient;
}

}  // namespace

void StageRunner::back_through(const Segment& segment, Live& live, Gradients& gradients) {
  const Roots roots = take_roots(segment, live, gradients);
  if (roots.edges.empty()) return;
  blamed(segment, live, [&] {
    torch::autograd::Engine::get_default_engine().execute(roots.edges, roots.gradients, /*keep_graph=*/false,
                                                          /*create_graph=*/false, /*accumulate_grad=*/true);
  });
  for (std::size_t i = 0; i < segment.enters.size(); ++i) {
    if (live.entries[i].is_valid()) add_to(gradients, segment.enters[i], entry_of(live.entries[i]).take());
  }
  live.entries.clear();
}

void StageRunner::input_half_of(const Segment& segment, Live& live, Gradients& gradients) {
  Roots roots = take_roots(segment, live, gradients);
  if (roots.edges.empty()) return;
  blamed(segment, live, [&] {
    InputHalf half =
        run_input_half(std::move(roots.edges), std::move(roots.gradients), live.entries, live.first_nodes);
    for (std::size_t i = 0; i < segment.enters.size(); ++i) {
      add_to(gradients, segment.enters[i], half.entered[i]);
    }
    live.rest = std::move(half.rest);
  });
  live.entries.clear();
}

template <class Pass>
std::vector<at::Tensor> StageRunner::back_through_all(const RandomKey& key,
                                                      const std::vector<at::Tensor>& sent_gradients,
                                                      double loss_scale, const Pass& pass) {
  ESP_CHECK(sent_gradients.size() == interface_.sent.size());
  recompute(key);
  MicroBatch& batch = alive_.at(key.micro_batch);
  Gradients gradients;
  for (std::size_t i = 0; i < sent_gradients.size(); ++i) gradients[interface_.sent[i]] = sent_gradients[i];
  if (batch.loss.defined()) {
    gradients[*program_.graph().loss()] = at::full_like(batch.loss, loss_scale);
  }
  for (std::size_t s = segments_.size(); s-- > 0;) pass(segments_[s], batch.segments[s], gradients);
  std::vector<at::Tensor> result;
  for (const TensorId id : interface_.received) result.push_back(gradients[id]);
  return result;
}

std::vector<at::Tensor> StageRunner::backward(const RandomKey& key,
                                              const std::vector<at::Tensor>& sent_gradients,
                                              double loss_scale) {
  const auto pass = [&](const Segment& segment, Live& live, Gradients& gradients) {
    back_through(segment, live, gradients);
  };
  std::vector<at::Tensor> result = back_through_all(key, sent_gradients, loss_scale, pass);
  alive_.erase(key.micro_batch);
  return result;
}

std::vector<at::Tensor> StageRunner::input_half(const RandomKey& key,
                                                const std::vector<at::Tensor>& sent_gradients,
                                                double loss_scale) {
  const auto pass = [&](const Segment& segment, Live& live, Gradients& gradients) {
    input_half_of(segment, live, gradients);
  };
  std::vector<at::Tensor> result = back_through_all(key, sent_gradients, loss_scale, pass);
  MicroBatch& batch = alive_.at(key.micro_batch);
  batch.inputs.clear();
  batch.loss.reset();
  return result;
}

void StageRunner::weight_half(std::uint64_t micro_batch) {
  MicroBatch& batch = alive_.at(micro_batch);
  for (std::size_t s = segments_.size(); s-- > 0;) {
    Live& live = batch.segments[s];
    blamed(segments_[s], live, [&] { run_weight_half(std::move(live.rest), trained_); });
  }
  alive_.erase(micro_batch);
}

}  // namespace espalier
