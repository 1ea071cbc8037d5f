#pragma once

// Everything on one device: the plan that every other must beat.

#include "espalier/planners/planner.h"

namespace espalier {

struct SingleOptions {
  OrderRule schedule = ScheduleKind::kOneFOneB;
};

// Tries each device and each micro-batch size; the fastest that fits. With 1F1B one micro-batch is in flight.
// O(devices × sizes) simulations.
Outcome single(const Problem& problem, const SingleOptions& options, Context& context);

}  // namespace espalier
