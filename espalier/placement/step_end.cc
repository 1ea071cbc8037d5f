#include "espalier/placement/step_end.h"

#include <algorithm>
#include <limits>

namespace espalier::placement {
namespace {

constexpr std::uint32_t kUntrained = std::numeric_limits<std::uint32_t>::max();

}  // namespace

StepEnd::StepEnd(const Instance& instance)
    : instance_(instance), parameter_of_(instance.resident_bytes.size(), kUntrained) {
  for (std::size_t p = 0; p < instance.trained.size(); ++p) parameter_of_[instance.trained[p]] = narrow(p);
}

void StepEnd::clear(TrainedCopies& copies) const {
  copies.there.assign(instance_.trained.size() * words(), 0);
  copies.updates.assign(instance_.devices(), 0);
  copies.copies.assign(instance_.devices(), 0);
  copies.done.resize(instance_.devices());
}

void StepEnd::add(TrainedCopies& copies, std::uint32_t resident, std::uint32_t device) const {
  const std::uint32_t parameter = parameter_of_[resident];
  if (parameter == kUntrained) return;
  copies.there[parameter * words() + device / 64] |= std::uint64_t{1} << (device % 64);
  copies.updates[device] += instance_.update_of(parameter, DeviceId(device)).count();
  ++copies.copies[device];
}

void StepEnd::remove(TrainedCopies& copies, std::uint32_t resident, std::uint32_t device) const {
  const std::uint32_t parameter = parameter_of_[resident];
  if (parameter == kUntrained) return;
  copies.there[parameter * words() + device / 64] &= ~(std::uint64_t{1} << (device % 64));
  copies.updates[device] -= instance_.update_of(parameter, DeviceId(device)).count();
  --copies.copies[device];
}

// Among the members, which wait for each other.
void StepEnd::sum(std::uint32_t parameter, TrainedCopies& copies) const {
  const Bytes bytes = instance_.trained_bytes[parameter];
  const DeviceId first(copies.members.front());
  Duration held, gather, give_back;
  std::int64_t begin = copies.done[first.index()];
  for (std::size_t i = 1; i < copies.members.size(); ++i) {
    const DeviceId other(copies.members[i]);
    const Route& there = instance_.way(other, first);
    const Route& back = instance_.way(first, other);
    held += there.hold(bytes) + there.receive.of(bytes) + back.hold(bytes) + back.send.of(bytes);
    gather = std::max(gather, there.send.of(bytes) + there.latency);
    give_back = std::max(give_back, back.latency + back.receive.of(bytes));
    begin = std::max(begin, copies.done[other.index()]);
  }
  const std::int64_t end = begin + (held + gather + give_back).count();
  for (const std::uint32_t member : copies.members) copies.done[member] = end;
}

Duration StepEnd::time(TrainedCopies& copies) const {
  std::fill(copies.done.begin(), copies.done.end(), 0);
  const std::size_t count = words();
  for (std::uint32_t p = 0; p < instance_.trained.size(); ++p) {
    const std::uint64_t* const all = &copies.there[p * count];
    if (count == 1 && (all[0] & (all[0] - 1)) == 0) continue;  // one, as a rule
    copies.members.clear();
    for (std::size_t w = 0; w < count; ++w) {
      for (std::uint64_t left = all[w]; left != 0; left &= left - 1) {
        copies.members.push_back(narrow(64 * w + static_cast<std::size_t>(__builtin_ctzll(left))));
      }
    }
    if (copies.members.size() > 1) sum(p, copies);
  }
  std::int64_t last = 0;
  for (std::size_t d = 0; d < copies.done.size(); ++d) {
    const std::size_t kind = instance_.kind[d].index();
    const std::int64_t fixed = copies.copies[d] > 0 ? instance_.update_fixed[kind].count() : 0;
    last = std::max(last, copies.done[d] + copies.updates[d] + fixed);
  }
  return Duration(last);
}

Duration StepEnd::time(std::span<const DeviceId> assignment, TrainedCopies& copies) const {
  clear(copies);
  for (std::size_t unit = 0; unit < assignment.size(); ++unit) {
    const std::uint32_t device = narrow(assignment[unit].index());
    for (const std::uint32_t resident : instance_.resident[unit]) {
      const std::uint32_t parameter = parameter_of_[resident];
      if (parameter == kUntrained) continue;
      const std::uint64_t word = copies.there[parameter * words() + device / 64];
      if ((word >> (device % 64) & 1) == 0) add(copies, resident, device);
    }
  }
  return time(copies);
}

}  // namespace espalier::placement
