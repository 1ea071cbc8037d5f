#include "espalier/runtime/pass_profiler.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <unordered_set>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/runtime/memory_meter.h"
#include "espalier/runtime/transport.h"

namespace espalier {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

double nanoseconds_between(Clock::time_point from, Clock::time_point to) {
  return static_cast<double>(std::chrono::duration_cast<std::chrono::nanoseconds>(to - from).count());
}

// Something that happens when a node of the backward graph is about to run.
class StartHook final : public torch::autograd::FunctionPreHook {
 public:
  explicit StartHook(std::function<void()> action) : action_(std::move(action)) {}
  variable_list operator()(const variable_list& gradients) override {
    action_();
    return gradients;
  }

 private:
  std::function<void()> action_;
};

// Finds the nodes that each operator adds to the graph. Those without a next edge (accumulators, entries) are
// nobody's: what they do counts for the node before them.
class NodeFinder {
 public:
  explicit NodeFinder(const Graph& graph) : graph_(graph) {}

  template <class Visit>
  void added_by(OperatorId op, const Tensors& tensors, const Visit& visit) {
    std::vector<Node*> open;
    const auto reach = [&](Node* node) {
      if (node != nullptr && node->num_outputs() > 0 && known_.insert(node).second) open.push_back(node);
    };
    for (const TensorId id : graph_.op(op).outputs) {
      const at::Tensor& tensor = tensors[id.index()];
      if (tensor.defined() && tensor.requires_grad()) reach(tensor.grad_fn().get());
    }
    while (!open.empty()) {
      Node* node = open.back();
      open.pop_back();
      visit(*node);
      for (const auto& edge : node->next_edges()) reach(edge.function.get());
    }
  }

 private:
  const Graph& graph_;
  std::unordered_set<Node*> known_;
};

class Stamper final : public CallObserver {
 public:
  explicit Stamper(const Graph& graph)
      : finder_(graph), forward_(graph.operators().size(), 0.0), backward_(graph.operators().size(), 0.0) {
    starts_.reserve(4 * graph.operators().size());
  }

  void begin_forward() { last_ = Clock::now(); }
  void after(OperatorId op, const Tensors& tensors) override {
    const auto now = Clock::now();
    forward_[op.index()] += nanoseconds_between(last_, now);
    finder_.added_by(op, tensors, [&](Node& node) {
      node.add_pre_hook(std::make_unique<StartHook>([this, op] { starts_.emplace_back(op, Clock::now()); }));
    });
    last_ = Clock::now();  // what the finder did does not count
  }
  void end_backward() {
    const auto end = Clock::now();
    for (std::size_t i = 0; i < starts_.size(); ++i) {
      const auto next = i + 1 < starts_.size() ? starts_[i + 1].second : end;
      backward_[starts_[i].first.index()] += nanoseconds_between(starts_[i].second, next);
    }
  }
  std::vector<double> take_forward() { return std::move(forward_); }
  std::vector<double> take_backward() { return std::move(backward_); }

 private:
  NodeFinder finder_;
  Clock::time_point last_;
  std::vector<double> forward_, backward_;
  std::vector<std::pair<OperatorId, Clock::time_point>> starts_;
};

// Which tensors an operator keeps is seen from reference counts: autograd refers to an input as it is, to an
// output by another tensor on its storage. Views refer to what they view without keeping it for backward, so
// those references are taken off. Parameters and constants are there anyway and are not listed.
class MemoryObserver final : public CallObserver {
 public:
  MemoryObserver(const Graph& graph, MemoryMeter& meter)
      : graph_(graph), finder_(graph), meter_(meter), memory_(graph.operators().size()) {}

  void before(OperatorId id, const Tensors& tensors) override {
    counts_.clear();
    for (const TensorId in : graph_.op(id).inputs) {
      const at::Tensor& tensor = tensors[in.index()];
      if (tensor.defined()) counts_[in] = {tensor.use_count(), tensor.storage().use_count()};
    }
    begin();
  }

  void after(OperatorId id, const Tensors& tensors) override {
    OperatorMemory& memory = memory_[id.index()];
    const Bytes live = meter_.live();
    end(memory);
    const Operator& op = graph_.op(id);
    memory.private_bytes = std::max(Bytes(), live - live_ - fresh_bytes(op, tensors));
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const TensorRole role = graph_.tensor(op.inputs[i]).role;
      if (role != TensorRole::kActivation && role != TensorRole::kInput) continue;
      if (keeps_input(op, op.inputs[i], tensors)) {
        memory.saved.push_back({SavedTensor::Side::kInput, static_cast<std::uint32_t>(i)});
      }
    }
    for (std::size_t i = 0; i < op.outputs.size(); ++i) {
      if (keeps_output(op, op.outputs[i], tensors)) {
        memory.saved.push_back({SavedTensor::Side::kOutput, static_cast<std::uint32_t>(i)});
      }
    }
    finder_.added_by(id, tensors, [&](Node& node) {
      node.add_pre_hook(std::make_unique<StartHook>([this, id] {
        end_backward();
        running_ = id;
        begin();
      }));
    });
  }

  void end_backward() {
    if (running_) end(memory_[running_->index()]);
    running_.reset();
  }
  std::vector<OperatorMemory> take() { return std::move(memory_); }

 private:
  void begin() {
    meter_.take_peak();
    live_ = meter_.live();
  }
  void end(OperatorMemory& memory) {
    memory.workspace = std::max(memory.workspace, meter_.take_peak() - std::max(meter_.live(), live_));
  }

  static const void* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

  bool has_counts(const at::Tensor& tensor) const { return tensor.defined() && tensor.has_storage(); }

  Bytes fresh_bytes(const Operator& op, const Tensors& tensors) const {
    std::set<const void*> old, fresh;
    for (const auto& [in, count] : counts_) old.insert(storage_of(tensors[in.index()]));
    Bytes bytes;
    for (const TensorId out : op.outputs) {
      const at::Tensor& tensor = tensors[out.index()];
      if (!has_counts(tensor) || old.contains(storage_of(tensor))) continue;
      if (fresh.insert(storage_of(tensor)).second) {
        bytes += Bytes(static_cast<std::int64_t>(tensor.storage().nbytes()));
      }
    }
    return bytes;
  }

  bool keeps_input(const Operator& op, TensorId in, const Tensors& tensors) const {
    const auto found = counts_.find(in);
    const at::Tensor& tensor = tensors[in.index()];
    if (found == counts_.end() || !has_counts(tensor)) return false;
    std::size_t same = 0, views = 0;  // outputs that are this tensor, or others on its storage
    for (const TensorId out : op.outputs) {
      const at::Tensor& output = tensors[out.index()];
      if (!has_counts(output) || storage_of(output) != storage_of(tensor)) continue;
      (output.is_same(tensor) ? same : views) += 1;
    }
    if (same > 0) return false;  // in place: seen at the output
    const std::size_t references = tensor.use_count() - found->second.first;
    const std::size_t on_storage = tensor.storage().use_count() - found->second.second;
    return on_storage > views || (views == 0 && references > 0);
  }

  bool keeps_output(const Operator& op, TensorId out, const Tensors& tensors) const {
    const at::Tensor& tensor = tensors[out.index()];
    if (!has_counts(tensor)) return false;
    std::size_t before = 0;
    std::set<const void*> holders;  // tensors on the storage that are no saved ones
    for (const auto& [in, count] : counts_) {
      const at::Tensor& input = tensors[in.index()];
      if (storage_of(input) != storage_of(tensor)) continue;
      if (!input.is_same(tensor)) return false;  // a view
      before = count.second;
    }
    for (const TensorId other : op.outputs) {
      const at::Tensor& output = tensors[other.index()];
      if (!has_counts(output) || storage_of(output) != storage_of(tensor)) continue;
      holders.insert(output.unsafeGetTensorImpl());
      if (output.is_view()) holders.insert(output._base().unsafeGetTensorImpl());
    }
    return tensor.storage().use_count() > (before > 0 ? before : holders.size());
  }

  const Graph& graph_;
  NodeFinder finder_;
  MemoryMeter& meter_;
  std::vector<OperatorMemory> memory_;
  std::map<TensorId, std::pair<std::size_t, std::size_t>> counts_;  // references to tensor and storage before
  std::optional<OperatorId> running_;
  Bytes live_;
};

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.defined() ? tensor.clone() : tensor);
  return result;
}

std::vector<OperatorId> all_operators(const Graph& graph) {
  std::vector<OperatorId> all;
  for (std::size_t i = 0; i < graph.operators().size(); ++i) all.push_back(OperatorId(i));
  return all;
}

std::vector<ParameterId> all_parameters(const Graph& graph) {
  return StageRunner::parameters_of(graph, all_operators(graph));
}

// The model cut into runs of about equal length, none through a colocation group.
std::vector<StageRunner::Interface> cut(const Graph& graph, std::size_t pieces) {
  const std::size_t n = graph.operators().size();
  std::map<std::uint32_t, std::size_t> last;
  for (std::size_t i = 0; i < n; ++i) {
    if (const auto group = graph.operators()[i].colocation) last[*group] = i;
  }
  std::vector<StageRunner::Interface> stages(1);
  std::vector<std::size_t> stage_of(n);
  std::size_t reach = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (i >= n * stages.size() / pieces && i >= reach) stages.emplace_back();
    if (const auto group = graph.operators()[i].colocation) reach = std::max(reach, last[*group] + 1);
    stage_of[i] = stages.size() - 1;
    stages.back().operators.push_back(OperatorId(i));
  }
  for (std::size_t t = 0; t < graph.tensors().size(); ++t) {
    const auto producer = graph.tensors()[t].producer;
    if (!producer) continue;
    std::set<std::size_t> readers;
    for (const OperatorId op : graph.readers(TensorId(t))) readers.insert(stage_of[op.index()]);
    readers.erase(stage_of[producer->index()]);
    for (const std::size_t s : readers) stages[s].received.push_back(TensorId(t));
    if (!readers.empty()) stages[stage_of[producer->index()]].sent.push_back(TensorId(t));
  }
  return stages;
}

}  // namespace

PassProfiler::PassProfiler(const Program& program, Session& session, const DataSource& data)
    : program_(program),
      session_(session),
      data_(data),
      holding_(session.holding(StageId(0), DeviceId(0), all_parameters(program.graph()))),
      runner_(program, session, holding_, {all_operators(program.graph()), {}, {}, {}}) {}

std::vector<at::Tensor> PassProfiler::inputs(const StageRunner& runner) {
  std::vector<at::Tensor> values;
  for (const std::size_t input : runner.inputs()) {
    values.push_back(data_.read(pass_, input, BatchSize(0), program_.micro_batch()).to(program_.device()));
  }
  return values;
}

PassTimes PassProfiler::plain() {
  const RandomKey key{session_.seed(), ++pass_, 0};
  const auto values = inputs(runner_);
  const auto start = Clock::now();
  runner_.forward(key, values, {});
  const auto middle = Clock::now();
  runner_.backward(key, {}, 1);
  return {nanoseconds_between(start, middle), nanoseconds_between(middle, Clock::now()), {}, {}};
}

std::vector<PassTimes> PassProfiler::in_flight(int passes) {
  return in_flight(runner_, {}, {}, passes);
}

std::vector<PassTimes> PassProfiler::in_flight(StageRunner& runner, const std::vector<at::Tensor>& received,
                                               const std::vector<at::Tensor>& gradients, int passes) {
  std::vector<PassTimes> times;
  RandomKey first{session_.seed(), ++pass_, 1};
  runner.forward(first, inputs(runner), copies(received));
  for (int i = 0; i < passes; ++i) {
    const RandomKey next{session_.seed(), ++pass_, 3 - first.micro_batch};
    const auto values = inputs(runner), arrived = copies(received), back = copies(gradients);
    const auto start = Clock::now();
    runner.forward(next, values, arrived);
    const auto middle = Clock::now();
    runner.backward(first, back, 1);
    times.push_back({nanoseconds_between(start, middle), nanoseconds_between(middle, Clock::now()), {}, {}});
    first = next;
  }
  runner.forget(first.micro_batch);
  return times;
}

double PassProfiler::forward_after(Duration wait) {
  const RandomKey key{session_.seed(), ++pass_, 0};
  const auto values = inputs(runner_);
  std::this_thread::sleep_for(std::chrono::nanoseconds(wait.count()));
  const auto start = Clock::now();
  runner_.forward(key, values, {});
  const double taken = nanoseconds_between(start, Clock::now());
  runner_.forget(key.micro_batch);
  return taken;
}

PassTimes PassProfiler::stamped() {
  const RandomKey key{session_.seed(), ++pass_, 0};
  const auto values = inputs(runner_);
  Stamper stamper(program_.graph());
  runner_.set_observer(&stamper);
  PassTimes times;
  const auto start = Clock::now();
  stamper.begin_forward();
  runner_.forward(key, values, {});
  const auto middle = Clock::now();
  runner_.set_observer(nullptr);
  runner_.backward(key, {}, 1);
  stamper.end_backward();
  times.forward = nanoseconds_between(start, middle);
  times.backward = nanoseconds_between(middle, Clock::now());
  times.forward_of = stamper.take_forward();
  times.backward_of = stamper.take_backward();
  return times;
}

std::vector<OperatorMemory> PassProfiler::memory() {
  MemoryMeter meter;
  const MemoryMeter::Scope scope(meter);
  const RandomKey key{session_.seed(), ++pass_, 0};
  const auto values = inputs(runner_);
  MemoryObserver observer(program_.graph(), meter);
  runner_.set_observer(&observer);
  runner_.forward(key, values, {});
  runner_.set_observer(nullptr);
  runner_.backward(key, {}, 1);
  observer.end_backward();
  return observer.take();
}

// One pass through the stages tells what each receives.
std::size_t PassProfiler::cut_into(std::size_t count) {
  pieces_.clear();
  for (StageRunner::Interface& interface : cut(program_.graph(), count)) {
    StageRunner runner(program_, session_, holding_, interface);
    pieces_.push_back({std::move(interface), std::move(runner), {}, {}});
  }
  const RandomKey key{session_.seed(), ++pass_, 0};
  std::map<TensorId, at::Tensor> crossing, gradients;
  for (Piece& piece : pieces_) {
    for (const TensorId id : piece.interface.received) piece.received.push_back(crossing[id].clone());
    const auto sent = piece.runner.forward(key, inputs(piece.runner), copies(piece.received));
    for (std::size_t i = 0; i < sent.size(); ++i) crossing[piece.interface.sent[i]] = sent[i];
  }
  for (auto piece = pieces_.rbegin(); piece != pieces_.rend(); ++piece) {
    for (const TensorId id : piece->interface.sent) piece->gradients.push_back(gradients[id]);
    const auto back = piece->runner.backward(key, copies(piece->gradients), 1);
    for (std::size_t i = 0; i < back.size(); ++i) {
      at::Tensor& sum = gradients[piece->interface.received[i]];
      if (back[i].defined()) sum = sum.defined() ? sum.add(back[i]) : back[i];
    }
  }
  return pieces_.size();
}

std::vector<PassTimes> PassProfiler::stages_in_flight(int passes) {
  std::vector<PassTimes> sums(static_cast<std::size_t>(passes));
  for (Piece& piece : pieces_) {
    const auto times = in_flight(piece.runner, piece.received, piece.gradients, passes);
    for (std::size_t i = 0; i < times.size(); ++i) {
      sums[i].forward += times[i].forward;
      sums[i].backward += times[i].backward;
    }
  }
  return sums;
}

std::function<void()> some_milliseconds() {
  const at::Tensor numbers = at::ones({1 << 20}), sum = at::zeros({1 << 20});
  const at::Tensor small = at::full({128, 128}, 0.5F), product = at::empty_like(small);
  return [=] {
    for (int i = 0; i < 16; ++i) {
      at::Tensor out = product;
      at::mm_out(out, small, small);
      if (i == 7) sum.add_(numbers);
    }
  };
}

}  // namespace espalier
