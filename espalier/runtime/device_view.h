#pragma once

// What one device of a run has to know of the job: which stages it hosts, who reads what here, what a message
// carries. Immutable. Includes libtorch; runtime/ only.

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "espalier/runtime/executor.h"

namespace espalier {

// One micro-batch of a crossing in one direction: a tensor on its way to its readers, or its gradient on the
// way back. On the wire it is one message for each device that wants it.
struct Passage {
  Message::Direction direction = Message::Direction::kForward;
  std::uint32_t crossing = 0;
  std::uint32_t micro_batch = 0;  // producer's and consumer's alike: the runtime has equal sizes
  friend auto operator<=>(const Passage&, const Passage&) = default;
};

constexpr Passage forward_passage(std::uint32_t crossing, std::uint32_t micro_batch) {
  return {Message::Direction::kForward, crossing, micro_batch};
}
constexpr Passage backward_passage(std::uint32_t crossing, std::uint32_t micro_batch) {
  return {Message::Direction::kBackward, crossing, micro_batch};
}

// What a message carries.
struct Payload {
  std::vector<std::int64_t> sizes;
  at::ScalarType type = at::kByte;
};

class DeviceView {
 public:
  // `job` must outlive it. Throws InputError where the plan sends a tensor that the model does not have.
  DeviceView(const Job& job, DeviceId device);
  // Without a program: messages carry as many bytes as the staged model says. `job` must outlive it.
  DeviceView(const PlannedJob& job, DeviceId device);

  const StagedModel& staged() const { return *staged_; }
  const Schedule& schedule() const { return *schedule_; }
  const std::vector<Action>& actions() const { return schedule_->devices[device_.index()]; }
  DeviceId device() const { return device_; }
  const std::string& name(DeviceId device) const { return (*names_)[device.index()]; }
  std::vector<StageId> stages() const;  // that have a replica here, ascending
  at::Device computes_on() const;

  std::uint32_t crossings() const { return static_cast<std::uint32_t>(staged_->crossings.size()); }
  const Crossing& crossing(std::uint32_t index) const { return staged_->crossings[index]; }
  TensorId tensor(std::uint32_t crossing) const;  // of one that is no token
  Payload payload(const Message& message) const;  // of no token

  // Does this device run that micro-batch of the stage?
  bool hosts(StageId stage, std::uint32_t micro_batch) const;
  // The reading stages whose replica for that micro-batch is here, ascending.
  std::vector<StageId> readers_here(std::uint32_t crossing, std::uint32_t micro_batch) const;
  // Null where the stage does not read it.
  const Crossing::Reader* reader(std::uint32_t crossing, StageId stage) const;
  bool gradient_returns(std::uint32_t crossing, StageId reader) const;

  // Of a stage here: B, or I and W where its backward is split.
  Action backward_start(StageId stage, std::uint32_t micro_batch) const;
  Action backward_end(StageId stage, std::uint32_t micro_batch) const;

  // "the gradient of 'add_1', micro-batch 3"
  std::string describe(const Message& message) const;

 private:
  DeviceView(const StagedModel& staged, const Schedule& schedule, const std::vector<std::string>& names,
             DeviceId device);

  const StagedModel* staged_;
  const Schedule* schedule_;
  const std::vector<std::string>* names_;
  const Program* program_ = nullptr;
  DeviceId device_;
  std::vector<std::optional<TensorId>> tensors_;       // by crossing
  std::set<std::pair<StageId, std::uint32_t>> split_;  // stage and micro-batch of each I here
};

}  // namespace espalier
