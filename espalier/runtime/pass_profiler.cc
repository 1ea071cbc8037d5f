#include "espalier/runtime/pass_profiler.h"

#include <map>
#include <thread>
#include <utility>

#include "espalier/runtime/even_stages.h"
#include "espalier/runtime/operator_times.h"

namespace espalier {
namespace {

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.defined() ? tensor.clone() : tensor);
  return result;
}

}  // namespace

PassProfiler::PassProfiler(const Program& program, Session& session, const DataSource& data)
    : program_(program),
      session_(session),
      data_(data),
      clock_(program.device()),
      holding_(session.holding(
          StageId(0), DeviceId(0),
          StageRunner::parameters_of(program.graph(), whole_model(program.graph()).operators))),
      runner_(program, session, holding_, whole_model(program.graph())) {}

RandomKey PassProfiler::next_pass(std::uint64_t micro_batch) {
  return {session_.seed(), ++pass_, micro_batch};
}

std::vector<at::Tensor> PassProfiler::inputs(const StageRunner& runner) {
  std::vector<at::Tensor> values;
  for (const std::size_t input : runner.inputs()) {
    values.push_back(data_.read(pass_, input, BatchSize(0), program_.micro_batch()).to(program_.device()));
  }
  return values;
}

PassTimes PassProfiler::plain() {
  const RandomKey key = next_pass(0);
  const auto values = inputs(runner_);
  const auto start = clock_.now();
  runner_.forward(key, values, {});
  const auto middle = clock_.now();
  runner_.backward(key, {}, 1);
  return {nanoseconds_between(start, middle), nanoseconds_between(middle, clock_.now()), {}, {}};
}

std::vector<PassTimes> PassProfiler::in_flight(int passes) {
  return in_flight(runner_, {}, {}, passes);
}

std::vector<PassTimes> PassProfiler::in_flight(StageRunner& runner, const std::vector<at::Tensor>& received,
                                               const std::vector<at::Tensor>& gradients, int passes) {
  std::vector<PassTimes> times;
  RandomKey first = next_pass(1);
  runner.forward(first, inputs(runner), copies(received));
  for (int i = 0; i < passes; ++i) {
    const RandomKey next = next_pass(3 - first.micro_batch);
    const auto values = inputs(runner), arrived = copies(received), back = copies(gradients);
    const auto start = clock_.now();
    runner.forward(next, values, arrived);
    const auto middle = clock_.now();
    runner.backward(first, back, 1);
    times.push_back({nanoseconds_between(start, middle), nanoseconds_between(middle, clock_.now()), {}, {}});
    first = next;
  }
  runner.forget(first.micro_batch);
  return times;
}

double PassProfiler::forward_after(Duration wait) {
  const RandomKey key = next_pass(0);
  const auto values = inputs(runner_);
  std::this_thread::sleep_for(std::chrono::nanoseconds(wait.count()));
  const auto start = clock_.now();
  runner_.forward(key, values, {});
  const double taken = nanoseconds_between(start, clock_.now());
  runner_.forget(key.micro_batch);
  return taken;
}

PassTimes PassProfiler::stamped() {
  const RandomKey key = next_pass(0);
  const auto values = inputs(runner_);
  OperatorTimes times_of(program_.graph(), clock_);
  runner_.set_observer(&times_of);
  PassTimes times;
  const auto start = clock_.now();
  times_of.begin_forward();
  runner_.forward(key, values, {});
  const auto middle = clock_.now();
  runner_.set_observer(nullptr);
  runner_.backward(key, {}, 1);
  times.backward_of = times_of.take_backward();
  times.forward = nanoseconds_between(start, middle);
  times.backward = nanoseconds_between(middle, clock_.now());
  times.forward_of = times_of.forward();
  return times;
}

HalfTimes PassProfiler::stamped_halves() {
  const RandomKey key = next_pass(0);
  const auto values = inputs(runner_);
  OperatorTimes times_of(program_.graph(), clock_);
  runner_.set_observer(&times_of);
  times_of.begin_forward();
  runner_.forward(key, values, {});
  runner_.set_observer(nullptr);
  HalfTimes times;
  runner_.input_half(key, {}, 1);
  times.input = times_of.take_backward();
  runner_.weight_half(key.micro_batch);
  times.weight = times_of.take_backward();
  return times;
}

std::vector<OperatorMemory> PassProfiler::memory() {
  MemoryMeter meter(program_.device());
  const MemoryMeter::Scope scope(meter);
  const RandomKey key = next_pass(0);
  const auto values = inputs(runner_);
  MemoryObserver observer(program_.graph(), meter);
  runner_.set_observer(&observer);
  runner_.forward(key, values, {});
  runner_.set_observer(nullptr);
  runner_.backward(key, {}, 1);
  observer.end_backward();
  return observer.memory();
}

// One pass through the stages tells what each receives.
std::size_t PassProfiler::cut_into(std::size_t count) {
  stages_.clear();
  for (StageRunner::Interface& interface : even_stages(program_.graph(), count)) {
    StageRunner runner(program_, session_, holding_, interface);
    stages_.push_back({std::move(interface), std::move(runner), {}, {}});
  }
  const RandomKey key = next_pass(0);
  std::map<TensorId, at::Tensor> crossing, gradients;
  for (CutStage& stage : stages_) {
    for (const TensorId id : stage.interface.received) stage.received.push_back(crossing[id].clone());
    const auto sent = stage.runner.forward(key, inputs(stage.runner), copies(stage.received));
    for (std::size_t i = 0; i < sent.size(); ++i) crossing[stage.interface.sent[i]] = sent[i];
  }
  for (auto stage = stages_.rbegin(); stage != stages_.rend(); ++stage) {
    for (const TensorId id : stage->interface.sent) stage->gradients.push_back(gradients[id]);
    const auto back = stage->runner.backward(key, copies(stage->gradients), 1);
    for (std::size_t i = 0; i < back.size(); ++i) {
      at::Tensor& sum = gradients[stage->interface.received[i]];
      if (back[i].defined()) sum = sum.defined() ? sum.add(back[i]) : back[i];
    }
  }
  return stages_.size();
}

std::vector<PassTimes> PassProfiler::stages_in_flight(int passes) {
  std::vector<PassTimes> sums(static_cast<std::size_t>(passes));
  for (CutStage& stage : stages_) {
    const auto times = in_flight(stage.runner, stage.received, stage.gradients, passes);
    for (std::size_t i = 0; i < times.size(); ++i) {
      sums[i].forward += times[i].forward;
      sums[i].backward += times[i].backward;
    }
  }
  return sums;
}

}  // namespace espalier
