#include "espalier/planners/placement/ranks.h"

#include <numeric>

namespace espalier::placement {

std::vector<Duration> upward_ranks(const Instance& instance, const MeanCosts& mean) {
  std::vector<Duration> rank(instance.tasks());
  for (std::size_t t = instance.tasks(); t-- > 0;) {
    Duration behind;
    for (const ValueId value : instance.produces[t]) {
      for (const TaskId reader : instance.readers[value.index()]) {
        const bool together = instance.unit[reader.index()] == instance.unit[t];
        behind =
            std::max(behind, rank[reader.index()] + (together ? Duration() : mean.message[value.index()]));
      }
    }
    rank[t] = mean.time[t] + behind;
  }
  return rank;
}

std::vector<Duration> downward_ranks(const Instance& instance, const MeanCosts& mean) {
  std::vector<Duration> rank(instance.tasks());
  for (std::size_t t = 0; t < instance.tasks(); ++t) {
    for (const ValueId value : instance.reads[t]) {
      const std::size_t producer = instance.producer[value.index()].index();
      const bool together = instance.unit[producer] == instance.unit[t];
      rank[t] = std::max(rank[t], rank[producer] + mean.time[producer] +
                                      (together ? Duration() : mean.message[value.index()]));
    }
  }
  return rank;
}

std::vector<TaskId> by_rank(std::span<const Duration> rank) {
  std::vector<TaskId> order;
  order.reserve(rank.size());
  for (std::size_t t = 0; t < rank.size(); ++t) order.emplace_back(t);
  std::sort(order.begin(), order.end(), [&](TaskId a, TaskId b) {
    const Duration rank_a = rank[a.index()], rank_b = rank[b.index()];
    return rank_a != rank_b ? rank_b < rank_a : a < b;
  });
  return order;
}

std::vector<std::uint32_t> priorities_by(std::span<const Duration> rank) {
  const std::vector<TaskId> order = by_rank(rank);
  std::vector<std::uint32_t> priority(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) priority[order[i].index()] = narrow(i);
  return priority;
}

std::vector<std::uint32_t> upward_priorities(const Instance& instance) {
  return priorities_by(upward_ranks(instance, MeanCosts(instance)));
}

std::vector<DeviceOrders> usual_orders(const Instance& instance) {
  return {{upward_priorities(instance), {}}, {}};
}

std::vector<Engine> engines_by(const Instance& instance, const Rules& rules,
                               std::span<const DeviceOrders> orders) {
  std::vector<Engine> engines;
  for (const DeviceOrders& by : orders) {
    if (engines.empty()) {
      engines.emplace_back(instance, rules, by);
    } else {
      engines.emplace_back(engines.front(), by);
    }
  }
  return engines;
}

}  // namespace espalier::placement
