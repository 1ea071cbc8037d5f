#pragma once

// The orders in which list methods take tasks.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <span>
#include <vector>

#include "espalier/placement/engine.h"
#include "espalier/placement/instance.h"
#include "espalier/planners/placement/list_clock.h"

namespace espalier::placement {

// The longest way to the end, from a task's begin: HEFT's upward rank, the b-level. Tasks that stand together
// send nothing to each other. O(tasks + reads).
std::vector<Duration> upward_ranks(const Instance& instance, const MeanCosts& mean);
// The longest way from the beginning to a task's begin: the downward rank, the t-level.
std::vector<Duration> downward_ranks(const Instance& instance, const MeanCosts& mean);

// Largest first, then the smallest number. Upward ranks give a legal order.
std::vector<TaskId> by_rank(std::span<const Duration> rank);
// The same as priorities: by task its place in that order.
std::vector<std::uint32_t> priorities_by(std::span<const Duration> rank);
// Those of upward ranks by mean costs.
std::vector<std::uint32_t> upward_priorities(const Instance& instance);

// What devices may run operators by, where nobody says: upward ranks by mean costs, or the order of the
// graph. Which is better depends on graph and placement: by upward rank the best split between layers of
// Transformer-XL-4 takes 3.3 times as long as in the order of the graph, the best placement found 5 % less
// (docs/planners/learned.md). So whoever can tries both.
std::vector<DeviceOrders> usual_orders(const Instance& instance);

// An engine for each of the orders; what they have in common is prepared once.
std::vector<Engine> engines_by(const Instance& instance, const Rules& rules,
                               std::span<const DeviceOrders> orders);

// Calls take(task) for all tasks in a legal order: of those whose producers were taken the one of the
// smallest priority, then the smallest number. O(tasks · log + reads).
template <class Take>
void for_each_ready(const Instance& instance, std::span<const std::uint32_t> priority, Take take) {
  std::vector<std::uint32_t> waits(instance.tasks());
  using Entry = std::pair<std::uint32_t, std::uint32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  for (std::size_t t = 0; t < instance.tasks(); ++t) {
    waits[t] = narrow(instance.reads[t].size());
    if (waits[t] == 0) ready.emplace(priority[t], narrow(t));
  }
  while (!ready.empty()) {
    const TaskId task(ready.top().second);
    ready.pop();
    take(task);
    for (const ValueId value : instance.produces[task.index()]) {
      for (const TaskId reader : instance.readers[value.index()]) {
        if (--waits[reader.index()] == 0) {
          ready.emplace(priority[reader.index()], narrow(reader.index()));
        }
      }
    }
  }
}

}  // namespace espalier::placement
