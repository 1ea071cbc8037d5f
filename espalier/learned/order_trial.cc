#include "espalier/learned/order_trial.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "espalier/planners/placement/ranks.h"

namespace espalier::placement {
namespace {

constexpr std::uint64_t kTrials = 8;  // a trial is this part of all learning

}  // namespace

std::uint64_t part_of(std::uint64_t updates, double part) {
  if (part >= 1) return updates;
  return std::max<std::uint64_t>(
      1, static_cast<std::uint64_t>(std::llround(static_cast<double>(updates) * part)));
}

std::vector<std::uint32_t> better_order(const Instance& instance, const Rules& rules,
                                        std::span<const Assignment> placements, Context& context) {
  std::vector<DeviceOrders> orders = usual_orders(instance);
  const std::vector<Engine> engines = engines_by(instance, rules, orders);
  std::optional<std::pair<Bytes, Duration>> best;
  std::size_t better = 0;
  for (std::size_t by = 0; by < orders.size(); ++by) {
    context.take_states(placements.size());
    for (const Evaluated& seen : engines[by].evaluate_all(placements, context.pool)) {
      const std::pair worth(seen.lack, seen.time);
      if (best && *best <= worth) continue;
      best = worth;
      better = by;
    }
  }
  return std::move(orders[better].priority);
}

namespace {

Placed best_of_parts(const Instance& instance, const TaskOptions& options, Context& context,
                     const LearnPart& learn) {
  TaskOptions by = options;
  by.tries_orders = false;
  if (!options.tries_orders) return learn(by, 1, context);
  const std::uint64_t trial = std::max<std::uint64_t>(1, context.left() / kTrials);
  std::optional<Placed> best;
  const auto keep = [&](Placed placed) {
    const bool shorter = best && placed.estimate && (!best->estimate || *placed.estimate < *best->estimate);
    const bool better = !best || !best->assignment || (placed.assignment && shorter);
    if (better) best = std::move(placed);
    return better;
  };
  std::vector<std::uint32_t> priority;
  constexpr double kPart = 1.0 / kTrials;
  double rest = 1;
  for (DeviceOrders& orders : usual_orders(instance)) {
    if (best && context.stop()) break;
    by.priority = std::move(orders.priority);
    Context part = context;
    part.budget.max_states = std::min(context.budget.max_states, context.states + trial);
    if (keep(learn(by, kPart, part))) priority = by.priority;
    context.states = part.states;
    rest -= kPart;
  }
  by.priority = std::move(priority);
  if (!context.stop()) keep(learn(by, rest, context));
  return *std::move(best);
}

}  // namespace

Placed by_better_order(const Instance& instance, const TaskOptions& options, Context& context,
                       const LearnPart& learn) {
  const std::uint64_t states = context.states;
  Placed placed = best_of_parts(instance, options, context, learn);
  placed.stats = {context.states - states, context.states - states};
  return placed;
}

}  // namespace espalier::placement
