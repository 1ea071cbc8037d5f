#pragma once

// An even split of the chain, as people do it by hand: as many contiguous stages as devices, in graph order,
// with equal shares of the parameters or of the time.

#include "espalier/planners/planner.h"

namespace espalier {

struct EvenOptions {
  enum class Balance : std::uint8_t { kTime, kParameters } balance = Balance::kTime;
  OrderRule schedule = ScheduleKind::kOneFOneB;
};

// Cut k of n stands where the running share first reaches k/n; with devices of several kinds, equal times:
// where it reaches the first k devices' part of all speed. Each row of device_rows, one device a stage. Uses
// fewer stages where the chain has fewer blocks than devices. With pins: stages with pinned blocks stand on
// their devices, the others on the rest in order, not all of which need be used; the largest share is as
// small as can be. O(operators) and one simulation per micro-batch size and row, O(blocks² · devices) with
// pins.
Outcome even(const Problem& problem, const EvenOptions& options, Context& context);

}  // namespace espalier
