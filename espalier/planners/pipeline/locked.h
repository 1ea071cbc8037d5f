#pragma once

// Planning around stages that people have locked: these stay as they are, the rest is planned on the devices
// that they leave.

#include <string>
#include <vector>

#include "espalier/planners/planner.h"

namespace espalier {

struct LockedOptions {
  OrderRule schedule = ScheduleKind::kOneFOneB;
};

// Why no plan can keep the problem's locked stages; empty if nothing speaks against it. One line each, the
// first word the place of the stage: an operator in two of them, a device of two, a pin elsewhere, operators
// that belong together but stand apart, a path that leaves a stage and returns to it, more replicas than
// micro-batches, micro-batches of different sizes. O(operators + edges) for each locked stage.
std::vector<std::string> locked_conflicts(const Problem& problem);

// The best plan in which each locked stage stands with its operators, devices, micro-batch and recomputation.
// There must be no conflict. The other operators fall into parts, so that no stage within a part could have a
// locked one both before and behind it; each part is cut by min_max_splits, over all ways to deal the devices
// that are left to the parts (at most 4096 of them), and the start of the problem, if it has one, takes part.
Outcome keep_locked(const Problem& problem, const LockedOptions& options, Context& context);

}  // namespace espalier
