#pragma once

// Memory over time of a timeline, worked out from its times alone: what a picture of it draws. Its maxima are
// the timeline's peaks, whatever the rules (a property that tests check, as the engine counts another way).
//
// With Rules::Memory::kLive a value is held from its producer's start to the last of: its last use on that
// device, the end of its sends, the end of whoever shares its memory; a received copy from the start of its
// message. With kAllHeld all of them are held throughout. Workspaces come and go with their tasks, residents
// stay.

#include <span>
#include <vector>

#include "espalier/placement/engine.h"

namespace espalier::placement {

// From this time on, to the next point's.
struct HeldFrom {
  Duration time;
  Bytes held;
  friend bool operator==(const HeldFrom&, const HeldFrom&) = default;
};

// By device: points by time, strictly ascending from 0, each of another amount than the one before it; the
// last is what stays. The timeline must be of this instance, these rules and this assignment, and neither a
// deadlock nor cut off. O((tasks + reads + messages) · log).
std::vector<std::vector<HeldFrom>> held_over_time(const Instance& instance, const Rules& rules,
                                                  std::span<const DeviceId> assignment,
                                                  const Timeline& timeline);

}  // namespace espalier::placement
