#pragma once

// BaPipe's planner (Zhao et al., arXiv 2012.12544) on any problem: its rules (planners/literal/bapipe.h) with
// times, memory and links of the problem, for every number of stages that divides the devices
// (equal_groups.h). Its two schedules for GPUs are both 1F1B here: 1F1B-SNO with the rule's limits, 1F1B-SO
// with twice as many micro-batches on their way. Closed forms choose between them; the simulator judges.

#include "espalier/planners/planner.h"

namespace espalier {

struct BapipeOptions {
  OrderRule schedule = ScheduleKind::kOneFOneB;  // of 1F1B alone 1F1B-SO is tried
};

// The fastest of them that fits; where nothing does, what the partition without regard to memory lacks.
// kUnsupported where operators are pinned. One state for each plan; O(stages · blocks²) each.
Outcome bapipe(const Problem& problem, const BapipeOptions& options, Context& context);

}  // namespace espalier
