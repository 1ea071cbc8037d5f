// What a device does: forward, backward, sums of gradients, the update.

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "espalier/base/check.h"
#include "espalier/base/hash.h"
#include "espalier/runtime/device_worker.h"

namespace espalier {
namespace {

at::Tensor token() {
  return at::zeros({1}, at::kByte);
}

// In host memory, one-dimensional; zeros where none flowed.
at::Tensor flat_gradient(const Variable& variable) {
  const at::Tensor gradient = variable.value.grad();
  return (gradient.defined() ? gradient : at::zeros_like(variable.value)).detach().reshape({-1}).cpu();
}

void set_gradient(Variable& variable, const at::Tensor& flat) {
  at::Tensor& gradient = variable.value.mutable_grad();
  if (!gradient.defined()) gradient = at::empty_like(variable.value, at::MemoryFormat::Preserve).detach();
  gradient.copy_(flat.view(variable.value.sizes()));
}

class OutputRecorder final : public CallObserver {
 public:
  OutputRecorder(const Graph& graph, std::uint32_t micro_batch, std::vector<OutputRecord>& records)
      : graph_(graph), micro_batch_(micro_batch), records_(records) {}

  void after(OperatorId op, const Tensors& tensors) override {
    const at::NoGradGuard no_grad;
    Fingerprint print;
    double norm = 0;
    for (const TensorId id : graph_.op(op).outputs) {
      const at::Tensor& tensor = tensors[id.index()];
      if (!tensor.defined()) continue;
      const at::Tensor dense = tensor.detach().cpu().contiguous();
      print.add(std::string_view(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()));
      if (dense.is_floating_point()) norm += dense.to(at::kDouble).square().sum().item<double>();
    }
    records_.push_back({op, micro_batch_, print.value(), std::sqrt(norm)});
  }

 private:
  const Graph& graph_;
  std::uint32_t micro_batch_;
  std::vector<OutputRecord>& records_;
};

}  // namespace

void DeviceWorker::run(const Action& action) {
  switch (action.kind) {
    case ActionKind::kForward:
      return forward(action);
    case ActionKind::kBackward:
      return backward(action);
    case ActionKind::kRecompute: {
      const auto start = Clock::now();
      stage(action.stage).runner->recompute(key_of(action));
      return record(action, Stream::kCompute, start);
    }
    case ActionKind::kAllReduce:
      return all_reduce_gradients(action);
    case ActionKind::kTieSum:
      return sum_tie(action);
    case ActionKind::kUpdate:
      return apply_update(action);
    case ActionKind::kInputGradient:
    case ActionKind::kWeightGradient:
      break;
  }
  throw InputError("the runtime does not split backward into two halves yet");
}

void DeviceWorker::forward(const Action& action) {
  StageHere& here = stage(action.stage);
  const std::uint32_t j = action.micro_batch;
  for (const std::uint32_t c : here.token_reads) {
    for (const std::size_t i : incoming_of(kForwardWay, c, j)) await(i);
  }
  std::vector<at::Tensor> received;
  for (const std::uint32_t c : here.reads) {
    const auto local = local_.find({kForwardWay, c, j});
    if (local != local_.end()) {
      received.push_back(local->second.value);
      if (--local->second.readers_left == 0) local_.erase(local);
    } else {
      const std::vector<std::size_t> items = incoming_of(kForwardWay, c, j);
      ESP_CHECK(items.size() == 1, crossing(c).tensor, items.size());
      received.push_back(await(items[0]));
    }
  }
  const auto start = Clock::now();
  const std::uint32_t micro_batches = job_.staged.stages[action.stage.index()].micro_batches;
  const BatchSize size = job_.program.micro_batch();
  const bool faulty = options_.faults.stage == action.stage.index();
  const std::uint32_t samples =
      faulty && options_.faults.fault == Fault::kWrongDataOrder ? (j + 1) % micro_batches : j;
  std::vector<at::Tensor> inputs;
  for (const std::size_t input : here.runner->inputs()) {
    inputs.push_back(data_.read(session_.step(), input, BatchSize(samples * size.count()), size)
                         .to(job_.program.device()));
  }
  if (faulty && options_.faults.fault == Fault::kStaleReceive) {
    if (here.last_received.empty()) here.last_received = received;
    std::swap(here.last_received, received);
  }
  OutputRecorder recorder(job_.program.graph(), j, outcome_.outputs);
  if (options_.record == ExecutorOptions::Record::kOutputs) here.runner->set_observer(&recorder);
  const std::vector<at::Tensor> sent = here.runner->forward(key_of(action), inputs, received);
  here.runner->set_observer(nullptr);
  if (faulty && options_.faults.fault == Fault::kDoubleBufferUpdate) {
    RandomKey again = key_of(action);
    again.micro_batch += micro_batches;
    here.runner->forward(again, inputs, received);
    here.runner->forget(again.micro_batch);
  }
  const at::Tensor loss = here.runner->loss(j);
  if (loss.defined()) outcome_.losses.emplace_back(j, loss.item<double>());
  record(action, Stream::kCompute, start);

  for (std::size_t i = 0; i < sent.size(); ++i) {
    const std::uint32_t c = here.sends[i];
    deliver({kForwardWay, c, {}, j, j}, sent[i]);
    const auto readers = static_cast<std::uint32_t>(readers_here(c, j).size());
    if (readers > 0) local_[{kForwardWay, c, j}] = {sent[i], readers};
  }
  for (const std::uint32_t c : here.token_sends) deliver({kForwardWay, c, {}, j, j}, token());
}

// Gradients of one tensor from several devices are added up by their lowest reading stage.
std::vector<at::Tensor> DeviceWorker::gradients_of_sent(const Action& action, StageHere& here) {
  const std::uint32_t j = action.micro_batch;
  std::vector<at::Tensor> gradients;
  for (const std::uint32_t c : here.sends) {
    std::map<StageId, at::Tensor> parts;
    const auto local = gradient_parts_.find({kBackwardWay, c, j});
    if (local != gradient_parts_.end()) {
      at::Tensor sum;
      for (const auto& [reader, part] : local->second) sum = sum.defined() ? sum.add(part) : part;
      parts[local->second.begin()->first] = sum;
      gradient_parts_.erase(local);
    }
    for (const std::size_t i : incoming_of(kBackwardWay, c, j)) {
      parts[incoming_[i].message->reader] = await(i);
      incoming_[i].value.reset();
    }
    at::Tensor sum;
    for (const auto& [reader, part] : parts) sum = sum.defined() ? sum.add(part) : part;
    gradients.push_back(sum);
  }
  return gradients;
}

void DeviceWorker::backward(const Action& action) {
  StageHere& here = stage(action.stage);
  const std::uint32_t j = action.micro_batch;
  for (const std::uint32_t c : here.token_sends) {
    for (const std::size_t i : incoming_of(kBackwardWay, c, j)) await(i);
  }
  const std::vector<at::Tensor> gradients = gradients_of_sent(action, here);
  const auto start = Clock::now();
  const std::uint32_t micro_batches = job_.staged.stages[action.stage.index()].micro_batches;
  const double scale = options_.faults.fault == Fault::kUnscaledLoss ? 1 : 1.0 / micro_batches;
  const bool lose = options_.faults.fault == Fault::kLostMicroBatch && j + 1 == micro_batches;
  std::vector<at::Tensor> before;
  for (const Variable& variable : here.holding->parameters) {
    if (lose)
      before.push_back(variable.value.grad().defined() ? variable.value.grad().clone() : at::Tensor());
  }
  const std::vector<at::Tensor> back = here.runner->backward(key_of(action), gradients, scale);
  for (std::size_t i = 0; i < before.size(); ++i)
    here.holding->parameters[i].value.mutable_grad() = before[i];
  record(action, Stream::kCompute, start);
  hand_back(action, here, back);
}

void DeviceWorker::hand_back(const Action& action, StageHere& here,
                             const std::vector<at::Tensor>& gradients) {
  const std::uint32_t j = action.micro_batch;
  for (std::size_t i = 0; i < here.reads.size(); ++i) {
    const std::uint32_t c = here.reads[i];
    if (!gradient_returns(c, here.id)) {
      ESP_CHECK(!gradients[i].defined(), crossing(c).tensor);
      continue;
    }
    // Zeros where nothing flowed: traffic does not depend on data.
    const TensorId id = tensor_by_name_.find(crossing(c).tensor)->second;
    auto& parts = gradient_parts_[{kBackwardWay, c, j}];
    parts[here.id] = gradients[i].defined()
                         ? gradients[i]
                         : at::zeros(job_.program.sizes(id),
                                     at::TensorOptions(job_.program.type(id)).device(job_.program.device()));
    std::size_t expected = 0;
    for (const StageId stage : readers_here(c, j)) expected += gradient_returns(c, stage) ? 1 : 0;
    if (parts.size() < expected || stage_is_here(crossing(c).from, j)) continue;
    at::Tensor sum;
    for (const auto& [reader, part] : parts) sum = sum.defined() ? sum.add(part) : part;
    gradient_parts_.erase({kBackwardWay, c, j});
    deliver({kBackwardWay, c, {}, j, j}, sum);
  }
  for (const std::uint32_t c : here.token_reads) {
    const auto readers = readers_here(c, j);
    const bool last = std::all_of(readers.begin(), readers.end(), [&](StageId s) {
      return s == here.id || done_.contains({ActionKind::kBackward, s, j});
    });
    if (crossing(c).returns && last) deliver({kBackwardWay, c, {}, j, j}, token());
  }
}

// One bucket for all gradients of the stage, and for each a mark that says whether it has one at all: torch's
// optimizers leave a parameter without gradient alone.
void DeviceWorker::all_reduce_gradients(const Action& action) {
  const auto start = Clock::now();
  StageHere& here = stage(action.stage);
  if (options_.faults.fault != Fault::kNoAllReduce) {
    std::vector<DeviceId> members;
    for (const StagedReplica& replica : job_.staged.stages[action.stage.index()].replicas) {
      members.push_back(replica.devices.at(0));
    }
    std::vector<at::Tensor> flat;
    for (const Variable& variable : here.holding->parameters) {
      const at::Tensor gradient = variable.value.grad();
      flat.push_back(flat_gradient(variable));
      flat.push_back(at::full({1}, gradient.defined() ? 1.0 : 0.0, variable.value.scalar_type()));
    }
    at::Tensor bucket = at::cat(flat);
    flat.clear();
    all_reduce(transport_, device_, members, bucket);
    std::int64_t offset = 0;
    for (Variable& variable : here.holding->parameters) {
      const std::int64_t elements = variable.value.numel();
      if (bucket[offset + elements].item<double>() > 0) {
        set_gradient(variable, bucket.narrow(0, offset, elements));
      }
      offset += elements + 1;
    }
  }
  record(action, Stream::kCollective, start);
}

// The first device of each stage that holds a copy has a part; parts are added up in stage order.
void DeviceWorker::sum_tie(const Action& action) {
  const auto start = Clock::now();
  const Tie& tie = job_.staged.ties.at(action.stage.index());
  const auto parameters = job_.program.graph().parameters();
  const auto named = std::find_if(parameters.begin(), parameters.end(), [&](const Parameter& p) {
    return std::find(p.names.begin(), p.names.end(), tie.parameter) != p.names.end();
  });
  ESP_CHECK(named != parameters.end(), tie.parameter);
  const ParameterId id(static_cast<std::size_t>(named - parameters.begin()));
  std::vector<Variable*> mine;  // this device's copies
  std::set<DeviceId> members;
  std::vector<DeviceId> sources;
  std::vector<at::Tensor> parts;
  for (const StageId s : tie.stages) {
    sources.push_back(job_.staged.stages[s.index()].replicas.at(0).devices.at(0));
    parts.emplace_back();
    for (const StagedReplica& replica : job_.staged.stages[s.index()].replicas) {
      members.insert(replica.devices.at(0));
      if (replica.devices.at(0) != device_) continue;
      for (Variable& variable : stage(s).holding->parameters) {
        if (variable.id != id) continue;
        mine.push_back(&variable);
        if (sources.back() == device_) parts.back() = flat_gradient(variable);
      }
    }
  }
  ESP_CHECK(!mine.empty(), tie.parameter);
  if (options_.faults.fault != Fault::kUntied) {
    const std::vector<DeviceId> everybody(members.begin(), members.end());
    const at::Tensor& like = mine.front()->value;
    const at::Tensor total =
        sum_in_order(transport_, device_, sources, everybody, parts, like.scalar_type(), like.numel());
    for (Variable* variable : mine) set_gradient(*variable, total);
  }
  record(action, Stream::kCollective, start);
}

void DeviceWorker::apply_update(const Action& action) {
  const auto start = Clock::now();
  StageHere& here = stage(action.stage);
  std::vector<Variable>& parameters = here.holding->parameters;
  const auto owned = [&](const Variable& variable) {
    return job_.owners[variable.id.index()] == std::pair(action.stage, device_);
  };
  if (options_.keep_gradients) {
    for (const Variable& variable : parameters) {
      const at::Tensor gradient = variable.value.grad();
      if (owned(variable) && gradient.defined()) outcome_.gradients[variable.id] = gradient.clone();
    }
  }
  const bool skip =
      options_.faults.fault == Fault::kSkippedUpdate && options_.faults.stage == action.stage.index();
  const std::vector<double> squares = options_.update && !skip
                                          ? update(session_.optimizer(), session_.step() + 1, parameters)
                                          : drop_gradients(parameters);
  const bool copies = options_.faults.fault == Fault::kNormOfCopies;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (copies || owned(parameters[i])) outcome_.gradient_norm_squared += squares[i];
  }
  record(action, Stream::kCompute, start);
}

}  // namespace espalier
