#pragma once

// Which order devices run by while a graph is learnt: the usual ones (usual_orders) are tried. By upward rank
// a fresh policy finds 7 to 20 % more on most of GDP's workloads, and on GNMT, where memory binds, placements
// that take twice as long (docs/planners/learned.md). So an eighth of the learning by each order says which
// it is, and the rest goes on by that from the start.

#include <functional>

#include "espalier/learned/placement_task.h"
#include "espalier/planners/placement/placer.h"

namespace espalier::placement {

// Learns with this part of its updates, by the priority of the options.
using LearnPart = std::function<Placed(const TaskOptions& options, double part, Context& context)>;

// The best of all parts, with the states that they took. `options.tries_orders` false: all of the learning,
// by the options' own priority.
Placed by_better_order(const Instance& instance, const TaskOptions& options, Context& context,
                       const LearnPart& learn);

// The priority of the usual order by which the best of these placements is shorter: what lacks least, where
// none fits. A state for each look at one.
std::vector<std::uint32_t> better_order(const Instance& instance, const Rules& rules,
                                        std::span<const Assignment> placements, Context& context);

// This part of so many updates, one at least.
std::uint64_t part_of(std::uint64_t updates, double part);

}  // namespace espalier::placement
