#pragma once

// AutoPipe's planner (Liu et al., CLUSTER 2022) on any problem: its partition of a chain
// (planners/literal/autopipe.h, rules and all) with times from the cost table, for every number of stages
// that divides the devices (equal_groups.h). Messages, memory and the true number of micro-batches are not
// seen by it, as published; the simulator judges what comes out. The slicer of warm-up micro-batches is left
// out.

#include <cstdint>

#include "espalier/planners/planner.h"

namespace espalier {

struct AutopipeOptions {
  OrderRule schedule = ScheduleKind::kOneFOneB;
  std::uint64_t max_partitions = 2'000;  // priced for one number of stages; then the best so far
};

// The fastest of them that fits. kUnsupported where operators are pinned. No replicas where the problem
// forbids them. One state for each plan; O(stages · blocks²) and O(stages²) a partition.
Outcome autopipe(const Problem& problem, const AutopipeOptions& options, Context& context);

}  // namespace espalier
