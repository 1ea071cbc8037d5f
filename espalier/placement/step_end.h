#pragma once

// What a step of a forward graph ends with, behind its last task: sums of gradients and updates. A trainable
// parameter has a copy on each device with a unit that touches it. Where these are several, the others send
// their gradients to the first of them, one after the other, which sends the sum back to each likewise (T in
// docs/semantics.md; the smallest device is the first). All of them wait for it, parameter by parameter. Then
// each device updates its copies.
//
//   gpu:0  … task ]│[ sum of w  ][ update w v ]        w is on both devices, v on gpu:0, u on gpu:1
//   gpu:1  … task  │[ sum of w  ][ update w u ]        the end of the step: the longer of the two
//
// The last task counts for all devices: a device that has been idle since long updates no sooner. A training
// graph has tasks for all of this, and its instance no trained parameters.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "espalier/placement/engine.h"

namespace espalier::placement {

// Which copies of parameters are where, and what time() works in. Its size is the instance's.
struct TrainedCopies {
  std::vector<std::uint64_t> there;   // by trained parameter: a bit for each device
  std::vector<std::int64_t> updates;  // by device: nanoseconds of its updates, without what is fixed
  std::vector<std::uint32_t> copies;  // by device
  std::vector<std::int64_t> done;     // by device, while time() works
  std::vector<std::uint32_t> members;
};

class StepEnd {
 public:
  explicit StepEnd(const Instance& instance);  // refers to it

  bool nothing() const { return instance_.trained.empty(); }

  void clear(TrainedCopies& copies) const;  // none is anywhere
  // A copy of what is held all step comes to a device where it was not, or leaves one where it was. Residents
  // that are not trained do not count.
  void add(TrainedCopies& copies, std::uint32_t resident, std::uint32_t device) const;
  void remove(TrainedCopies& copies, std::uint32_t resident, std::uint32_t device) const;

  // What the step ends with. O(trained parameters · (devices / 64) + sums · devices).
  Duration time(TrainedCopies& copies) const;
  // With the copies of this assignment, whatever was there. O(units' residents), and the above.
  Duration time(std::span<const DeviceId> assignment, TrainedCopies& copies) const;

 private:
  std::size_t words() const { return (instance_.devices() + 63) / 64; }
  void sum(std::uint32_t parameter, TrainedCopies& copies) const;

  const Instance& instance_;
  std::vector<std::uint32_t> parameter_of_;  // by resident: its place in `trained`
};

namespace internal {

// What the tasks may take so that the whole step takes less than the limit; nothing: it cannot.
inline std::optional<Duration> before_ending(Duration limit, Duration ending) {
  if (limit == Duration::max()) return limit;
  return ending < limit ? std::optional(limit - ending) : std::nullopt;
}
inline Evaluated with_ending(Evaluated tasks, Duration ending) {
  if (!tasks.cut_off && !tasks.deadlock) tasks.time += ending;
  return tasks;
}

}  // namespace internal
}  // namespace espalier::placement
