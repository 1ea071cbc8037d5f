#pragma once

// What one device of a run has to know of the job: which stages it hosts, who reads what here, what a message
// carries. Immutable. Includes libtorch; runtime/ only.

#include <cstdint>
#include <optional>
#include <string>
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

class DeviceView {
 public:
  // `job` must outlive it. Throws InputError where the plan sends a tensor that the model does not have.
  DeviceView(const Job& job, DeviceId device);

  const Job& job() const { return job_; }
  DeviceId device() const { return device_; }
  const std::string& name(DeviceId device) const { return job_.device_names[device.index()]; }
  std::vector<StageId> stages() const;  // that have a replica here, ascending

  std::uint32_t crossings() const { return static_cast<std::uint32_t>(job_.staged.crossings.size()); }
  const Crossing& crossing(std::uint32_t index) const { return job_.staged.crossings[index]; }
  TensorId tensor(std::uint32_t crossing) const;  // of one that is no token

  // Does this device run that micro-batch of the stage?
  bool hosts(StageId stage, std::uint32_t micro_batch) const;
  // The reading stages whose replica for that micro-batch is here, ascending.
  std::vector<StageId> readers_here(std::uint32_t crossing, std::uint32_t micro_batch) const;
  // Null where the stage does not read it.
  const Crossing::Reader* reader(std::uint32_t crossing, StageId stage) const;
  bool gradient_returns(std::uint32_t crossing, StageId reader) const;

  // "the gradient of 'add_1', micro-batch 3"
  std::string describe(const Message& message) const;

 private:
  const Job& job_;
  DeviceId device_;
  std::vector<std::optional<TensorId>> tensors_;  // by crossing
};

}  // namespace espalier
