#pragma once

// What a run of step_time.h is between two instants, and the step that looks start from: what they change in
// it, and the snapshots that they go on from and compare themselves with.
//
// A snapshot has what is alive alone, with times relative to its instant. What tasks still wait for is not in
// it: that follows from which tasks have ended, and from the messages on their way.

#include <cstdint>
#include <vector>

#include "espalier/placement/step_time.h"

namespace espalier::placement::internal {

struct StepSnapshot {
  Time now = 0;
  std::uint32_t done = 0;
  std::vector<StepDevice> devices;
  std::vector<std::uint32_t> ready;      // device by device; with priorities ranks, ascending
  std::vector<std::uint32_t> ready_end;  // by device
  std::vector<Flight> flights;           // bus by bus, or by arrival, value and device
  std::vector<Time> free;                // by bus or link; 0: free
  std::vector<char> copied;

  std::size_t alive() const { return devices.size() + ready.size() + flights.size() + free.size(); }
};

// A step that looks start from.
struct StepBase {
  std::vector<std::uint16_t> device;    // by task
  std::vector<std::uint32_t> position;  // by task: which it was to end
  std::vector<StepDevice> start;        // before anything has run
  std::vector<StepSnapshot> snapshots;  // after that
  Time time = 0;
  struct Times {                         // where they are noted
    std::vector<Time> start, end;        // by task
    std::vector<MessageTimes> messages;  // by read of a value: of its device's first
  } times;
};

// What a look changes. The base's devices are already the changed ones.
struct StepChange {
  struct Task {
    std::uint32_t task = 0;
    std::uint16_t from = 0, to = 0;
  };
  std::vector<Task> moved;
  std::vector<std::uint32_t>
      noticed;              // positions in the base, ascending: who gives the moved tasks something
  bool from_start = false;  // noticed at the beginning
  std::vector<std::uint32_t> critical;  // by value: of this look if it is `mark`
  std::uint32_t mark = 0;
};

// Nothing more happens at `now`, by when so many tasks have ended. O(what is alive · log).
StepSnapshot snapshot(const Tables& tables, const StepState& state, Time now, std::size_t done);

// The state of the snapshot's instant, which is now `now`; what tasks wait for is left as it is. O(what is
// alive).
void restore(const Tables& tables, const StepSnapshot& from, Time now, StepState& state);

// Whether what is alive is the same, a constant time later or sooner, and neither has a message on its way
// that the moved tasks notice. O(what is alive · log); what differs is mostly seen at the first device.
bool same(const Tables& tables, const StepSnapshot& snapshot, const StepChange& change, Time now,
          StepState& state);

}  // namespace espalier::placement::internal
