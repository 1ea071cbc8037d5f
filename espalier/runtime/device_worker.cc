#include "espalier/runtime/device_worker.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/runtime/blame.h"
#include "espalier/runtime/gradient_sums.h"
#include "espalier/runtime/optimizer_step.h"
#include "espalier/runtime/wire.h"

namespace espalier {
namespace {

ParameterId parameter_named(const Graph& graph, const std::string& name) {
  const auto parameters = graph.parameters();
  const auto found = std::find_if(parameters.begin(), parameters.end(), [&](const Parameter& parameter) {
    return std::find(parameter.names.begin(), parameter.names.end(), name) != parameter.names.end();
  });
  ESP_CHECK(found != parameters.end(), name);
  return ParameterId(static_cast<std::size_t>(found - parameters.begin()));
}

}  // namespace

DeviceWorker::DeviceWorker(const Job& job, Session& session, const DataSource& data, Transport& transport,
                           const ExecutorOptions& options, DeviceId device)
    : DeviceLoop(DeviceView(job, device), transport),
      job_(job),
      session_(session),
      data_(data),
      transport_(transport),
      options_(options),
      hooks_(options.hooks != nullptr ? *options.hooks : no_hooks_) {
  const MemoryMeter::Scope scope(meter_);
  for (const Traffic& here : traffic()) {
    stages_.push_back(make_stage(here));
    recorder_.watch(*stages_.back().holding);
  }
}

DeviceWorker::StageHere DeviceWorker::make_stage(const Traffic& traffic) {
  const Stage& stage = job_.plan.stages[traffic.stage.index()];
  StageRunner::Interface interface {
    stage.operators, stage.recompute, {}, {}
  };
  for (const std::uint32_t c : traffic.reads) interface.received.push_back(view_.tensor(c));
  for (const std::uint32_t c : traffic.sends) interface.sent.push_back(view_.tensor(c));
  StageHere here;
  here.id = traffic.stage;
  here.traffic = &traffic;
  here.holding = &session_.holding(
      here.id, view_.device(), StageRunner::parameters_of(job_.graph(), interface.operators), job_.copies);
  here.runner = std::make_unique<StageRunner>(*job_.programs[here.id.index()], session_, *here.holding,
                                              std::move(interface));
  return here;
}

DeviceWorker::StageHere& DeviceWorker::stage(StageId id) {
  const auto found =
      std::find_if(stages_.begin(), stages_.end(), [&](const StageHere& here) { return here.id == id; });
  ESP_CHECK(found != stages_.end(), id, view_.device());
  return *found;
}

bool DeviceWorker::owns(StageId id, ParameterId parameter) const {
  return job_.owners[parameter.index()] == std::pair(id, view_.device());
}

RandomKey DeviceWorker::key_of(const Action& action) const {
  return hooks_.key(action, {session_.seed(), session_.step(), action.micro_batch});
}

void DeviceWorker::begin() {
  const MemoryMeter::Scope scope(meter_);
  at::set_num_threads(static_cast<int>(options_.threads));
  tensors_.clear();
  gradients_.clear();
  losses_.clear();
  outcome_ = {};
  start_step();
}

void DeviceWorker::perform(const Action& action) {
  hooks_.around(action, stage(action.stage()).holding, [&] { dispatch(action); });
}

SquaresOfParameters DeviceWorker::squares() const {
  SquaresOfParameters squares;
  for (const StageHere& here : stages_) {
    for (const Variable& variable : here.holding->parameters) {
      if (owns(here.id, variable.id)) squares.emplace_back(variable.id, squares_of_gradient(variable));
    }
  }
  return squares;
}

void DeviceWorker::scale_gradients(double factor) {
  if (factor == 1) return;
  const at::NoGradGuard no_grad;
  for (const StageHere& here : stages_) {
    for (Variable& variable : here.holding->parameters) {
      if (variable.value.grad().defined()) variable.value.mutable_grad().mul_(factor);
    }
  }
}

StepOutcome DeviceWorker::finish() {
  const MemoryMeter::Scope scope(meter_);
  finish_sends();
  for (const auto& [micro_batch, loss] : losses_) {
    outcome_.losses.emplace_back(micro_batch, loss.item<double>());
  }
  losses_.clear();
  recorder_.hand_over(outcome_);
  hooks_.finished(outcome_);
  return std::move(outcome_);
}

void DeviceWorker::dispatch(const Action& action) {
  switch (action.kind) {
    case ActionKind::kForward:
      return forward(action);
    case ActionKind::kBackward:
    case ActionKind::kInputGradient:
      return backward(action);
    case ActionKind::kWeightGradient:
      return weight_half(action);
    case ActionKind::kRecompute:
      return recompute(action);
    case ActionKind::kUpdate:
      return apply_update(action);
    case ActionKind::kAllReduce:
    case ActionKind::kTieSum:
      break;  // sum_of
  }
  ESP_CHECK(false, letter(action.kind));
}

void DeviceWorker::forward(const Action& action) {
  StageHere& here = stage(action.stage());
  const Share share{action.stage(), action.micro_batch};
  std::vector<at::Tensor> received = receive(here, share);
  const auto start = recorder_.now();
  const std::vector<at::Tensor> inputs = read_inputs(action, here);
  hooks_.received(action, received);
  if (options_.purpose == ExecutorOptions::Purpose::kEvaluate) {
    return pass_on(here, share, evaluate(action, here, inputs, received));
  }
  OutputRecorder outputs(job_.graph(), share.micro_batch, outcome_.outputs);
  if (options_.record == ExecutorOptions::Record::kOutputs) here.runner->set_observer(&outputs);
  const std::vector<at::Tensor> sent = here.runner->forward(key_of(action), inputs, received);
  here.runner->set_observer(nullptr);
  const at::Tensor loss = here.runner->loss(share.micro_batch);
  if (loss.defined()) losses_.emplace_back(share.micro_batch, not_written_again(here, loss.detach()));
  received.clear();
  recorder_.action(action, start);
  pass_on(here, share, sent);
}

// Nothing is kept: there will be no backward.
std::vector<at::Tensor> DeviceWorker::evaluate(const Action& action, StageHere& here,
                                               const std::vector<at::Tensor>& inputs,
                                               const std::vector<at::Tensor>& received) {
  const at::NoGradGuard no_grad;
  OutputSummer outputs(job_.graph(), outcome_.output_sums);
  here.runner->set_observer(&outputs);
  std::vector<at::Tensor> sent = here.runner->forward(key_of(action), inputs, received);
  here.runner->set_observer(nullptr);
  here.runner->forget(action.micro_batch);
  return sent;
}

std::vector<at::Tensor> DeviceWorker::receive(const StageHere& here, const Share& share) {
  const SampleRange samples = view_.samples(share);
  for (const std::uint32_t c : here.traffic->token_reads) inbox_.await_all(kForwardWay, c, samples);
  std::vector<at::Tensor> received;
  for (const std::uint32_t c : here.traffic->reads) {
    std::vector<Piece> pieces = inbox_.await_tensors(c, samples);
    for (const Share& producer : view_.shares(view_.crossing(c).from, samples)) {
      const std::vector<Piece> local = tensors_.take({c, producer.micro_batch});
      pieces.insert(pieces.end(), local.begin(), local.end());
    }
    received.push_back(joined(view_, c, pieces, samples));
  }
  return received;
}

std::vector<at::Tensor> DeviceWorker::read_inputs(const Action& action, const StageHere& here) const {
  const BatchSize size = job_.programs[here.id.index()]->micro_batch();
  const BatchSize first = BatchSize(hooks_.samples_of(action) * size.count());
  std::vector<at::Tensor> inputs;
  for (const std::size_t input : here.runner->inputs()) {
    inputs.push_back(data_.read(session_.step(), input, first, size).to(view_.computes_on()));
  }
  return inputs;
}

at::Tensor DeviceWorker::not_written_again(const StageHere& here, const at::Tensor& tensor) {
  const auto shares = [&](const Variable& variable) {
    return share_memory(tensor, variable.value) || share_memory(tensor, variable.value.grad());
  };
  for (const auto* list : {&here.holding->parameters, &here.holding->buffers, &here.holding->shared}) {
    if (std::any_of(list->begin(), list->end(), shares)) return copy_on_wire(tensor);
  }
  return tensor;
}

void DeviceWorker::pass_on(const StageHere& here, const Share& share, const std::vector<at::Tensor>& sent) {
  const SampleRange samples = view_.samples(share);
  for (std::size_t i = 0; i < sent.size(); ++i) {
    const std::uint32_t c = here.traffic->sends[i];
    const at::Tensor value = not_written_again(here, sent[i]);
    outbox_.hand_in(kForwardWay, c, share.micro_batch, [&](const Message& message) {
      return view_.part(c, value, samples, view_.samples(message));
    });
    tensors_.keep({c, share.micro_batch}, {share.stage, samples, value},
                  view_.readers_here(c, samples).size());
  }
  pass_tokens_on(share);
}

void DeviceWorker::recompute(const Action& action) {
  const auto start = recorder_.now();
  stage(action.stage()).runner->recompute(key_of(action));
  recorder_.action(action, start);
}

void DeviceWorker::backward(const Action& action) {
  StageHere& here = stage(action.stage());
  const Share share{action.stage(), action.micro_batch};
  for (const std::uint32_t c : here.traffic->token_sends) {
    inbox_.await_all(kBackwardWay, c, view_.samples(share));
  }
  const std::vector<at::Tensor> gradients = gradients_of_sent(here, share);
  const auto start = recorder_.now();
  const double mean = 1.0 / job_.staged.stages[action.stage().index()].micro_batches;
  const double scale = hooks_.loss_scale(action, mean);
  const std::vector<at::Tensor> back = action.kind == ActionKind::kBackward
                                           ? here.runner->backward(key_of(action), gradients, scale)
                                           : here.runner->input_half(key_of(action), gradients, scale);
  recorder_.action(action, start);
  hand_back(here, share, back);
}

void DeviceWorker::weight_half(const Action& action) {
  const auto start = recorder_.now();
  stage(action.stage()).runner->weight_half(key_of(action).micro_batch);
  recorder_.action(action, start);
}

// Each device with readers adds theirs up and sends the sum in the name of its lowest reader; the sums are
// added up here, in that order.
std::vector<at::Tensor> DeviceWorker::gradients_of_sent(const StageHere& here, const Share& share) {
  const SampleRange samples = view_.samples(share);
  std::vector<at::Tensor> gradients;
  for (const std::uint32_t c : here.traffic->sends) {
    std::vector<Piece> pieces = inbox_.await_gradients(c, samples);
    const Produced produced{c, share.micro_batch};
    for (Piece& local : added_up(view_, c, gradients_.of(produced), samples)) {
      pieces.push_back(std::move(local));
    }
    gradients_.drop(produced);
    const std::vector<Piece> sums = added_up(view_, c, pieces, samples);
    gradients.push_back(sums.empty() ? at::Tensor() : joined(view_, c, sums, samples));
  }
  return gradients;
}

void DeviceWorker::hand_back(const StageHere& here, const Share& share,
                             const std::vector<at::Tensor>& gradients) {
  for (std::size_t i = 0; i < here.traffic->reads.size(); ++i) {
    const std::uint32_t c = here.traffic->reads[i];
    if (view_.gradient_returns(c, here.id)) {
      hand_back(here, share, c, gradients[i]);
    } else {
      ESP_CHECK(!gradients[i].defined(), view_.crossing(c).tensor);
    }
  }
  return_tokens(share);
}

void DeviceWorker::hand_back(const StageHere& here, const Share& share, std::uint32_t crossing,
                             const at::Tensor& gradient) {
  const SampleRange samples = view_.samples(share);
  const Program& program = *job_.programs[here.id.index()];
  // Zeros where nothing flowed: traffic does not depend on data.
  const at::Tensor value =
      gradient.defined()
          ? not_written_again(here, gradient)
          : at::zeros(view_.sizes(crossing, samples),
                      at::TensorOptions(program.type(view_.tensor(crossing))).device(program.device()));
  for (const Share& producer : view_.shares(view_.crossing(crossing).from, samples)) {
    const SampleRange all = view_.samples(producer), mine = common(all, samples);
    const Produced produced{crossing, producer.micro_batch};
    gradients_.add(produced, {here.id, mine, view_.part(crossing, value, samples, mine)});
    if (view_.hosts(producer)) continue;
    outbox_.hand_in(kBackwardWay, crossing, producer.micro_batch, [&](const Message& message) {
      return is_last_to_return(crossing, view_.samples(message), share) ? returned(message) : at::Tensor();
    });
    if (is_last_to_return(crossing, all, share)) gradients_.drop(produced);
  }
}

at::Tensor DeviceWorker::returned(const Message& message) const {
  const SampleRange samples = view_.samples(message);
  std::vector<Piece> sums = added_up(
      view_, message.crossing, gradients_.of({message.crossing, message.producer_micro_batch}), samples);
  for (const Message* const other :
       outbox_.messages(kBackwardWay, message.crossing, message.producer_micro_batch)) {
    if (!(*other < message)) continue;
    const SampleRange carried = common(view_.samples(*other), samples);
    for (Piece& sum : sums) {
      const SampleRange twice = common(carried, sum.samples);
      if (twice.size() <= 0) continue;
      sum.value = sum.value.clone();
      view_.part(message.crossing, sum.value, sum.samples, twice).zero_();
    }
  }
  return joined(view_, message.crossing, sums, samples);
}

std::vector<Holding*> DeviceWorker::summed_holdings(const Action& sum) {
  if (sum.kind == ActionKind::kAllReduce) return {stage(sum.stage()).holding};
  std::vector<Holding*> holdings;
  for (const StageId id : job_.staged.ties.at(sum.tie().index()).stages) {
    for (const StageHere& here : stages_) {
      if (here.id == id) holdings.push_back(here.holding);
    }
  }
  return holdings;
}

std::function<void()> DeviceWorker::sum_of(const Action& action) {
  for (const Holding* const holding : summed_holdings(action)) recorder_.summing(*holding);
  Holding* const holding = action.kind == ActionKind::kTieSum ? nullptr : stage(action.stage()).holding;
  return [this, action, holding] {
    at::set_num_threads(static_cast<int>(options_.threads));
    hooks_.around(action, holding, [&] { sum_gradients(action); });
  };
}

void DeviceWorker::summed(const Action& sum) {
  for (const Holding* const holding : summed_holdings(sum)) recorder_.summed(*holding);
}

void DeviceWorker::sum_gradients(const Action& action) {
  if (action.kind == ActionKind::kAllReduce) {
    sum_over_replicas(transport_, view_.device(), job_.staged.stages[action.stage().index()].replicas,
                      *stage(action.stage()).holding);
  } else {
    const Tie& tie = job_.staged.ties.at(action.tie().index());
    std::map<StageId, Holding*> holdings;
    for (const StageHere& here : stages_) holdings[here.id] = here.holding;
    sum_over_copies(transport_, view_.device(), job_.staged, tie,
                    parameter_named(job_.graph(), tie.parameter), holdings);
  }
}

void DeviceWorker::apply_update(const Action& action) {
  const auto start = recorder_.now();
  std::vector<Variable>& parameters = stage(action.stage()).holding->parameters;
  if (options_.keep_gradients) {
    for (const Variable& variable : parameters) {
      const at::Tensor gradient = variable.value.grad();
      if (owns(action.stage(), variable.id) && gradient.defined()) {
        outcome_.gradients[variable.id] = gradient.clone();
      }
    }
  }
  const std::vector<double> squares =
      options_.update ? update(session_.optimizer_of_step(), session_.step() + 1, parameters)
                      : drop_gradients(parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (owns(action.stage(), parameters[i].id)) outcome_.squares.emplace_back(parameters[i].id, squares[i]);
  }
  recorder_.action(action, start);
}

}  // namespace espalier
