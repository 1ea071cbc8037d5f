#pragma once

// An even split of the chain, as people do it by hand: as many contiguous stages as devices, in graph order,
// with equal shares of the parameters or of the time.

#include "espalier/planners/planner.h"

namespace espalier {

struct EvenOptions {
  enum class Balance : std::uint8_t { kTime, kParameters } balance = Balance::kTime;
  OrderRule schedule = ScheduleKind::kOneFOneB;
};

// Cut k of n stands where the running share first reaches k/n. Devices in the cluster's order, equal shares
// whatever their speed. Uses fewer stages where the chain has fewer blocks than devices. O(operators) and one
// simulation per micro-batch size.
Outcome even(const Problem& problem, const EvenOptions& options, Context& context);

}  // namespace espalier
