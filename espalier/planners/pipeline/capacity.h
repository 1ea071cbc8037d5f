#pragma once

// What devices of unequal speed can do in a time, without a plan: bounds for searches that hand out a row of
// devices from one end.
//
//   work       of operators: what they take on the devices that are fastest at each
//   capacity   of a device: of such work, what it does in a time at most, per mille of that time

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace espalier::internal {

inline constexpr std::int64_t kWholeCapacity = 1'000;  // of a device that is fastest at something
inline constexpr std::int64_t kNeverDone = std::numeric_limits<std::int64_t>::max();

// The capacity of a device in one piece of work, `least` of which takes it so long; rounded up. Its capacity
// in several pieces, of which it may choose any, is the largest of them. Both times are positive.
inline std::int64_t capacity_in(std::int64_t least, std::int64_t takes) {
  if (takes <= least || least > kNeverDone / kWholeCapacity) return kWholeCapacity;
  return (kWholeCapacity * least - 1) / takes + 1;
}

// No devices of that capacity do so much work in less; kNeverDone where there is some and no capacity.
inline std::int64_t least_time(std::int64_t work, std::int64_t capacity) {
  if (work == 0) return 0;
  if (capacity == 0) return kNeverDone;
  return work <= kNeverDone / kWholeCapacity ? kWholeCapacity * work / capacity
                                             : work / capacity * kWholeCapacity;
}

struct Capacities {
  std::vector<std::int64_t> work;      // by piece; 0 where nobody can do it
  std::vector<std::int64_t> of_class;  // by class of devices
};
// From what each class takes for each piece; negative: it cannot. O(classes · pieces).
inline Capacities capacities(const std::vector<std::vector<std::int64_t>>& takes) {
  Capacities found;
  found.of_class.assign(takes.size(), 0);
  for (std::size_t piece = 0; !takes.empty() && piece < takes.front().size(); ++piece) {
    std::int64_t least = kNeverDone;
    for (const auto& of_class : takes) {
      if (of_class[piece] >= 0) least = std::min(least, of_class[piece]);
    }
    found.work.push_back(least == kNeverDone ? 0 : least);
    for (std::size_t c = 0; c < takes.size() && found.work.back() > 0; ++c) {
      if (takes[c][piece] < 0) continue;
      found.of_class[c] = std::max(found.of_class[c], capacity_in(least, takes[c][piece]));
    }
  }
  return found;
}

}  // namespace espalier::internal
