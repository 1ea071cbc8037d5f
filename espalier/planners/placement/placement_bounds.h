#pragma once

// Times that no assignment of an instance beats under given rules, each with its scope. They hold for every
// assignment that fits, under every order of tasks and every rule of sends: messages may wait longer than
// assumed here, never shorter.
//
// What all of them take for granted (engine.h): a task starts when all that it reads has arrived, runs at
// least its time on its device, and a message takes at least the latency and the hold of its way. Units stand
// where they are allowed and, alone, fit: a device whose memory a unit exceeds all by itself is none of its.

#include <optional>
#include <string>

#include "espalier/placement/engine.h"

namespace espalier::placement {

struct PlacementBound {
  Duration time;
  std::string why;  // "the path through task 7: 12 ms"
  friend bool operator==(const PlacementBound&, const PlacementBound&) = default;
};

// Critical path, each task on the quickest kind that its unit may stand on, messages free. O(tasks + edges).
PlacementBound path_bound(const Instance& instance, const Rules& rules);

// Critical path with communication: what a task reads either comes by a message, or was made on its own
// device, one after the other with all else that it reads from there (Fernandez and Bussell, IEEE ToC'73;
// Jung, Kirousis, Spirakis, SPAA'89). Least ends by task and kind, and the same backwards from the end; a
// task's both together bound the step. O(tasks · kinds² · fan · log fan), fan-in counted up to 32.
PlacementBound message_path_bound(const Instance& instance, const Rules& rules);

// Work over devices. Weights λ of devices, together one, and prices μ of memory bound the busiest device's
// work T from below (weak duality of the fractional assignment):
//   T ≥ Σ over units of the least over its devices d of (λ_d · work on d + μ_d · its bytes) − Σ μ_d ·
//   memory_d
// Any λ and μ are sound, and good ones are found by ascent; equal devices need none. Also the largest units
// that must share a device. O(units · classes of devices · 200).
PlacementBound load_bound(const Instance& instance, const Rules& rules);

// Work in a window: tasks that can start no earlier than h and have at least q behind them run between h and
// the end less q. h and q from message_path_bound, work weighed as in load_bound. O(tasks · (48 + log tasks))
// beside those.
PlacementBound window_bound(const Instance& instance, const Rules& rules);

// The largest of all.
PlacementBound placement_bound(const Instance& instance, const Rules& rules);

// Why no assignment fits, where sums or the largest items prove it: a unit that no device holds alone; all
// residents together; of the largest units, so many that some device must hold too much. Nothing: it may fit.
// O(units · devices + units · log units).
std::optional<std::string> nothing_fits(const Instance& instance, const Rules& rules);

// By unit and device (unit * devices + device): whether the unit may stand there and fits there alone.
std::vector<bool> possible_places(const Instance& instance, const Rules& rules);

// By unit: bytes that it surely adds to its device all step long, beside those of all other units. What
// several units share is the first one's.
std::vector<Bytes> own_bytes(const Instance& instance, const Rules& rules);

}  // namespace espalier::placement
