#pragma once

// What list methods share: tasks are given devices one after the other, in a legal order; the first of a unit
// decides for all of it; a device without room for a unit is none of its choices.

#include <optional>
#include <span>
#include <vector>

#include "espalier/planners/placement/list_clock.h"
#include "espalier/planners/placement/memory_ledger.h"
#include "espalier/planners/placement/placer.h"

namespace espalier::placement {

class ListState {
 public:
  ListState(const Instance& instance, Rules::Sends sends, Gaps gaps);

  const Instance& instance() const { return instance_; }
  const ListClock& clock() const { return clock_; }
  ListClock& clock() { return clock_; }
  const MemoryLedger& ledger() const { return ledger_; }

  // The device of a task's unit, if it has one.
  std::optional<DeviceId> decided(TaskId task) const { return chosen_[instance_.unit[task.index()].index()]; }
  // Where a task may go, ascending, at least one device: where its unit stands, or all that have room for it;
  // without any the one that would lack least. Good until the next call.
  std::span<const DeviceId> choices(TaskId task);
  // The one of those where it ends first, then the smallest.
  DeviceId where_it_ends_first(TaskId task);

  // Sets a task on one of its choices.
  ListClock::Slot put(TaskId task, DeviceId device);

  // All tasks have been set. An assignment that does not fit is repaired (repair.h), and its estimate is
  // that of the same order of tasks on the devices of the repair.
  Placed finish() const;

 private:
  const Instance& instance_;
  Rules::Sends sends_;
  Gaps gaps_;
  ListClock clock_;
  MemoryLedger ledger_;
  std::vector<std::optional<DeviceId>> chosen_;  // by unit
  std::vector<DeviceId> choices_;
};

// The estimate of an assignment, with tasks taken in the order of `priority`, smallest first among those
// that are ready: a replay of list scheduling on fixed devices. O(tasks · log + reads · links).
ListClock replay(const Instance& instance, const Assignment& assignment,
                 std::span<const std::uint32_t> priority, Rules::Sends sends, Gaps gaps);

// An assignment that another method found: repaired where it does not fit, with the estimate and the orders
// of a replay by upward ranks.
Placed placed_by(const Instance& instance, Assignment assignment);

}  // namespace espalier::placement
