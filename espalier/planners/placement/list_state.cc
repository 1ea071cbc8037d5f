#include "espalier/planners/placement/list_state.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <tuple>

#include "espalier/base/check.h"
#include "espalier/planners/placement/ranks.h"
#include "espalier/planners/placement/repair.h"

namespace espalier::placement {
namespace {

// A repaired assignment with its estimate, or why there is none.
Placed placed_from(const Instance& instance, Repaired repaired, std::span<const std::uint32_t> priority,
                   Rules::Sends sends, Gaps gaps) {
  Placed placed;
  placed.stats.states = repaired.states;
  if (!repaired.assignment) {
    placed.why = std::move(repaired.why);
    placed.lacks = std::move(repaired.lacks);
    return placed;
  }
  const ListClock clock = replay(instance, *repaired.assignment, priority, sends, gaps);
  placed.assignment = std::move(repaired.assignment);
  placed.estimate = clock.makespan();
  placed.orders = clock.orders();
  return placed;
}

}  // namespace

ListState::ListState(const Instance& instance, Rules::Sends sends, Gaps gaps)
    : instance_(instance),
      sends_(sends),
      gaps_(gaps),
      clock_(instance, sends, gaps),
      ledger_(instance),
      chosen_(instance.units()) {}

std::span<const DeviceId> ListState::choices(TaskId task) {
  const UnitId unit = instance_.unit[task.index()];
  choices_.clear();
  if (chosen_[unit.index()]) {
    choices_.push_back(*chosen_[unit.index()]);
    return choices_;
  }
  for (const DeviceId device : instance_.allowed[unit.index()]) {
    if (ledger_.fits(unit, device)) choices_.push_back(device);
  }
  if (!choices_.empty()) return choices_;
  const auto lack = [&](DeviceId device) {
    return ledger_.needs_with(unit, device) - instance_.memory[device.index()];
  };
  const std::span<const DeviceId> allowed = instance_.allowed[unit.index()];
  choices_.push_back(*std::min_element(allowed.begin(), allowed.end(),
                                       [&](DeviceId a, DeviceId b) { return lack(a) < lack(b); }));
  return choices_;
}

DeviceId ListState::where_it_ends_first(TaskId task) {
  std::optional<std::pair<Duration, DeviceId>> best;
  for (const DeviceId device : choices(task)) {
    const std::pair choice(clock_.slot(task, device).end, device);
    if (!best || choice < *best) best = choice;
  }
  return best->second;
}

ListClock::Slot ListState::put(TaskId task, DeviceId device) {
  std::optional<DeviceId>& chosen = chosen_[instance_.unit[task.index()].index()];
  if (!chosen) {
    chosen = device;
    ledger_.place(instance_.unit[task.index()], device);
  }
  ESP_CHECK(*chosen == device, task, device);
  return clock_.set(task, device);
}

Placed ListState::finish() const {
  Assignment assignment;
  for (const std::optional<DeviceId>& device : chosen_) {
    ESP_CHECK(device.has_value());
    assignment.push_back(*device);
  }
  Placed placed;
  placed.orders = clock_.orders();
  if (ledger_.lack().count() == 0) {
    placed.assignment = std::move(assignment);
    placed.estimate = clock_.makespan();
    return placed;
  }
  return placed_from(instance_, repair(instance_, std::move(assignment)), placed.orders.priority, sends_,
                     gaps_);
}

ListClock replay(const Instance& instance, const Assignment& assignment,
                 std::span<const std::uint32_t> priority, Rules::Sends sends, Gaps gaps) {
  ListClock clock(instance, sends, gaps);
  for_each_ready(instance, priority,
                 [&](TaskId task) { clock.set(task, assignment[instance.unit[task.index()].index()]); });
  return clock;
}

Placed placed_by(const Instance& instance, Assignment assignment) {
  const std::vector<TaskId> order = by_rank(upward_ranks(instance, MeanCosts(instance)));
  std::vector<std::uint32_t> priority(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) priority[order[i].index()] = narrow(i);
  return placed_from(instance, repair(instance, std::move(assignment)), priority, Rules::Sends::kRoutes,
                     Gaps::kFilled);
}

}  // namespace espalier::placement
