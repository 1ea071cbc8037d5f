#pragma once

// What one device of a run has to know of the job: which stages it hosts, who reads what here, what a message
// carries. Immutable. Includes libtorch; runtime/ only.

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "espalier/runtime/executor.h"

namespace espalier {

// A part of the batch, half open. It is counted in units: the largest number of samples that divides all
// micro-batches of the plan.
struct SampleRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  friend auto operator<=>(const SampleRange&, const SampleRange&) = default;
};
inline SampleRange common(const SampleRange& a, const SampleRange& b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}
inline bool overlap(const SampleRange& a, const SampleRange& b) {
  return common(a, b).size() > 0;
}

constexpr auto kForwardWay = Message::Direction::kForward;
constexpr auto kBackwardWay = Message::Direction::kBackward;

// A micro-batch of a stage.
struct Share {
  StageId stage;
  std::uint32_t micro_batch = 0;
  friend auto operator<=>(const Share&, const Share&) = default;
};

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
  std::vector<std::int64_t> sizes(std::uint32_t crossing, const SampleRange& samples) const;
  // `value` has the samples `of`; those of `wanted` alone, in the same memory.
  at::Tensor part(std::uint32_t crossing, const at::Tensor& value, const SampleRange& of,
                  const SampleRange& wanted) const;
  std::int64_t sample_dimension(std::uint32_t crossing) const;

  SampleRange samples(const Share& share) const;
  SampleRange samples(const Message& message) const;
  // The micro-batches of a stage that have some of these samples, ascending.
  std::vector<Share> shares(StageId stage, const SampleRange& samples) const;

  // Does this device run that micro-batch?
  bool hosts(const Share& share) const;
  // What reads some of these samples of the crossing here, ascending.
  std::vector<Share> readers_here(std::uint32_t crossing, const SampleRange& samples) const;
  // Null where the stage does not read it.
  const Crossing::Reader* reader(std::uint32_t crossing, StageId stage) const;
  bool gradient_returns(std::uint32_t crossing, StageId reader) const;

  // Of a stage here: B, or I and W where its backward is split.
  Action backward_start(const Share& share) const;
  Action backward_end(const Share& share) const;

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
  std::int64_t units_ = 1;                        // of the batch
  std::int64_t samples_of_unit_ = 0;              // 0: without a program
  std::vector<std::optional<TensorId>> tensors_;  // by crossing
  std::set<Share> split_;                         // those with an I here
};

}  // namespace espalier
