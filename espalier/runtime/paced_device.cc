#include "espalier/runtime/paced_device.h"

#include <errno.h>
#include <time.h>

#include <algorithm>

#include "espalier/base/check.h"

namespace espalier {
namespace {

// A wait that takes no longer than this was none: the message was there, and looking takes its time.
constexpr auto kLook = std::chrono::microseconds(100);

// std::chrono::steady_clock is CLOCK_MONOTONIC here; its own sleep_until rounds no better.
void sleep_until(Clock::time_point when) {
  const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(when.time_since_epoch()).count();
  constexpr std::int64_t kSecond = 1'000'000'000;
  const timespec deadline{static_cast<time_t>(since / kSecond), static_cast<long>(since % kSecond)};
  while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, nullptr) == EINTR) {
  }
}

// From when on something could begin that could not before `earliest`, given what `wait` waits for.
template <class Wait>
Clock::time_point ready_after(Clock::time_point earliest, const Wait& wait) {
  const Clock::time_point before = Clock::now();
  wait();
  const Clock::time_point after = Clock::now();
  return after - before > kLook ? std::max(after, earliest) : earliest;
}

std::int64_t largest_message(const DeviceView& view) {
  std::int64_t largest = 1;
  for (const Channel& channel : view.schedule().channels) {
    if (channel.from != view.device()) continue;
    for (const Message& message : channel.messages) {
      if (view.crossing(message.crossing).token) continue;
      largest = std::max(largest, view.payload(message).sizes.at(0));
    }
  }
  return largest;
}

}  // namespace

PacedDevice::PacedDevice(const PlannedJob& job, const Cluster& cluster, Transport& transport, DeviceId device,
                         double slower)
    : DeviceLoop(DeviceView(job, device), transport),
      staged_(job.staged),
      cluster_(cluster),
      transport_(transport),
      slower_(slower) {
  const MemoryMeter::Scope scope(meter_);
  bytes_ = at::zeros({largest_message(view_)}, at::kByte);
}

void PacedDevice::begin() {
  const MemoryMeter::Scope scope(meter_);
  start_step();
  free_ = sum_free_ = Clock::now();
  sum_ends_.clear();
}

StepOutcome PacedDevice::finish() {
  const MemoryMeter::Scope scope(meter_);
  finish_sends();
  StepOutcome outcome;
  recorder_.hand_over(outcome);
  return outcome;
}

void PacedDevice::perform(const Action& action) {
  const Clock::time_point ready = ready_after(free_, [&] { await_inputs(action); });
  const Clock::time_point start = recorder_.now();
  free_ = ready + paced(time_of(action));
  sleep_until(free_);
  recorder_.action(action, start);
  send_outputs(action);
}

std::function<void()> PacedDevice::sum_of(const Action& action) {
  return [this, action, reached = free_] { meet(action, reached); };
}

void PacedDevice::meet(const Action& action, Clock::time_point reached) {
  const Collective sum = collective_of(staged_, cluster_, action);
  const Clock::time_point ready = ready_after(std::max(reached, sum_free_), [&] {
    if (sum.members.size() > 1) {
      all_reduce(transport_, view_.device(), sum.members, at::zeros({1}, at::kFloat));
    }
  });
  sum_free_ = ready + paced(sum.hold + sum.latency);
  sleep_until(sum_free_);
  const std::lock_guard guard(sum_ends_lock_);
  sum_ends_[action] = sum_free_;
}

void PacedDevice::summed(const Action& sum) {
  const std::lock_guard guard(sum_ends_lock_);
  free_ = std::max(free_, sum_ends_.at(sum));
}

void PacedDevice::await_inputs(const Action& action) {
  if (once_per_step(action.kind)) return;
  const Traffic& here = traffic(action.stage());
  const Share share{action.stage(), action.micro_batch};
  const SampleRange samples = view_.samples(share);
  if (action.kind == ActionKind::kForward) {
    for (const auto* crossings : {&here.reads, &here.token_reads}) {
      for (const std::uint32_t c : *crossings) inbox_.await_all(kForwardWay, c, samples);
    }
  } else if (action == view_.backward_start(share)) {
    for (const std::uint32_t c : here.sends) inbox_.await_gradients(c, samples);
    for (const std::uint32_t c : here.token_sends) {
      inbox_.await_all(kBackwardWay, c, samples);
    }
  }
}

void PacedDevice::send_outputs(const Action& action) {
  if (once_per_step(action.kind)) return;
  const Traffic& here = traffic(action.stage());
  const Share share{action.stage(), action.micro_batch};
  const auto beginning = [&](const Message& message) {
    return bytes_.narrow(0, 0, view_.payload(message).sizes.at(0));
  };
  if (action.kind == ActionKind::kForward) {
    for (const std::uint32_t c : here.sends) {
      outbox_.hand_in(kForwardWay, c, share.micro_batch, beginning);
    }
    pass_tokens_on(share);
  } else if (action == view_.backward_start(share)) {
    for (const std::uint32_t c : here.reads) {
      if (view_.gradient_returns(c, here.stage)) send_gradient(c, share, beginning);
    }
    return_tokens(share);
  }
}

void PacedDevice::send_gradient(std::uint32_t crossing, const Share& share, const Outbox::ValueOf& value_of) {
  for (const Share& producer : view_.shares(view_.crossing(crossing).from, view_.samples(share))) {
    outbox_.hand_in(kBackwardWay, crossing, producer.micro_batch, [&](const Message& message) {
      const bool last = is_last_to_return(crossing, view_.samples(message), share);
      return last ? value_of(message) : at::Tensor();
    });
  }
}

Duration PacedDevice::time_of(const Action& action) const {
  for (const StagedReplica& replica : staged_.stages[action.stage().index()].replicas) {
    if (replica.devices.at(0) != view_.device()) continue;
    switch (action.kind) {
      case ActionKind::kForward:
        return replica.times.forward;
      case ActionKind::kBackward:
        return replica.times.backward();
      case ActionKind::kInputGradient:
        return replica.times.input_half();
      case ActionKind::kWeightGradient:
        return replica.times.weight_half();
      case ActionKind::kRecompute:
        return replica.times.recompute;
      case ActionKind::kUpdate:
        return replica.times.update;
      case ActionKind::kAllReduce:
      case ActionKind::kTieSum:
        break;  // sum_of
    }
  }
  ESP_CHECK(false, letter(action.kind), view_.device());
  return {};
}

Clock::duration PacedDevice::paced(Duration time) const {
  return std::chrono::nanoseconds(round_duration(slower_ * static_cast<double>(time.count())).count());
}

}  // namespace espalier
