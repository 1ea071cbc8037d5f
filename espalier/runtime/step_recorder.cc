#include "espalier/runtime/step_recorder.h"

#include <algorithm>
#include <utility>

#include "espalier/base/check.h"

namespace espalier {
namespace {

Duration since_epoch(Clock::time_point time) {
  return Duration(std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

}  // namespace

Bytes bytes_of(const at::Tensor& tensor) {
  return Bytes(static_cast<std::int64_t>(tensor.nbytes()));
}

void StepRecorder::start_step() {
  spans_.clear();
  samples_.clear();
  measure_holdings();
  sample_memory(Clock::now(), meter_.live());
}

void StepRecorder::action(const Action& action, Clock::time_point start) {
  const auto end = clock_.now();
  Span span;
  span.device = view_.device();
  span.action = action;
  span.start = since_epoch(start);
  span.end = since_epoch(end);
  spans_.push_back(span);
  if (action.kind != ActionKind::kForward) measure_holdings();
  sample_memory(start, meter_.restart_peak());
  sample_memory(end, meter_.live());
}

void StepRecorder::sum(const Action& action, Clock::time_point start, Clock::time_point end) {
  const StagedModel& staged = view_.staged();
  Span span;
  span.device = view_.device();
  span.stream = Stream::kCollective;
  span.kind = SpanKind::kCollective;
  span.action = action;
  span.start = since_epoch(start);
  span.end = since_epoch(end);
  span.posted = span.start;
  span.bytes = action.kind == ActionKind::kAllReduce ? staged.stages[action.stage().index()].reduced
                                                     : staged.ties[action.tie().index()].bytes;
  spans_.push_back(span);
}

void StepRecorder::summing(const Holding& holding) {
  Watched& here = watched(holding);
  if (here.sums++ == 0) measure(here);
}

void StepRecorder::summed(const Holding& holding) {
  --watched(holding).sums;
}

StepRecorder::Watched& StepRecorder::watched(const Holding& holding) {
  const auto found = std::find_if(holdings_.begin(), holdings_.end(),
                                  [&](const Watched& watched) { return watched.holding == &holding; });
  ESP_CHECK(found != holdings_.end());
  return *found;
}

void StepRecorder::received(const Message& message, DeviceId from, const Action& waiter, Bytes bytes,
                            Clock::time_point posted, Clock::time_point arrived) {
  Span span = message_span(message, from, waiter, bytes);
  span.stream = Stream::kReceive;
  span.kind = SpanKind::kReceiveWait;
  span.start = since_epoch(posted);
  span.end = since_epoch(arrived);
  spans_.push_back(span);
}

void StepRecorder::sent(const Message& message, DeviceId to, const Action& producer, Bytes bytes,
                        Clock::time_point posted, Clock::time_point completed) {
  Span span = message_span(message, to, producer, bytes);
  span.stream = Stream::kSend;
  span.kind = SpanKind::kTransfer;
  span.start = since_epoch(posted);
  span.end = since_epoch(std::max(posted, completed));
  span.posted = span.start;
  spans_.push_back(span);
}

Span StepRecorder::message_span(const Message& message, DeviceId peer, const Action& action,
                                Bytes bytes) const {
  Span span;
  span.device = view_.device();
  span.action = action;
  span.message = message;
  span.peer = peer;
  span.bytes = bytes;
  return span;
}

void StepRecorder::hand_over(StepOutcome& outcome) {
  outcome.spans = std::exchange(spans_, {});
  outcome.memory = std::exchange(samples_, {});
}

// Gradients and the optimizer's state come and go with actions other than F.
void StepRecorder::measure_holdings() {
  Bytes parameters, buffers, gradients, state;
  for (Watched& here : holdings_) {
    if (here.sums == 0) measure(here);
    parameters += here.parameters;
    buffers += here.buffers;
    gradients += here.gradients;
    state += here.state;
  }
  const auto set = [&](MemoryCategory category, Bytes bytes) {
    held_.bytes[static_cast<std::size_t>(category)] = bytes;
  };
  set(MemoryCategory::kParameters, parameters);
  set(MemoryCategory::kGradients, gradients);
  set(MemoryCategory::kOptimizer, state);
  set(MemoryCategory::kBuffers, buffers);
}

void StepRecorder::measure(Watched& watched) {
  watched.parameters = watched.gradients = watched.state = watched.buffers = Bytes();
  for (const Variable& variable : watched.holding->parameters) {
    watched.parameters += bytes_of(variable.value);
    if (variable.value.grad().defined()) watched.gradients += bytes_of(variable.value.grad());
    for (const at::Tensor& tensor : variable.state) watched.state += bytes_of(tensor);
  }
  for (const Variable& variable : watched.holding->buffers) watched.buffers += bytes_of(variable.value);
}

// The meter sees everything that the device allocated, so what is left beside the holdings are activations,
// with workspace and what is on its way.
void StepRecorder::sample_memory(Clock::time_point when, Bytes live) {
  MemorySample sample{.device = view_.device(), .time = since_epoch(when), .held = held_};
  sample.held.bytes[static_cast<std::size_t>(MemoryCategory::kActivations)] =
      std::max(Bytes(), live - held_.total());
  if (!samples_.empty() && samples_.back().time >= sample.time) {
    sample.time = samples_.back().time;
    if (last_live_ < live) samples_.back() = sample, last_live_ = live;
    return;
  }
  last_live_ = live;
  samples_.push_back(sample);
}

}  // namespace espalier
