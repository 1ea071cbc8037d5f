#pragma once

// A first graph pipeline: branches of the structure (graph/structure.h) become parallel stages.

#include <vector>

#include "espalier/planners/planner.h"

namespace espalier {

struct BranchesOptions {
  // Parallel parts that are tried, those with most work beside the heaviest branch; and more, as long as
  // that has taken less than a hundredth of the budget for a row and a micro-batch.
  std::size_t max_groups = 3;
  std::size_t more_groups = 9;
  OrderRule schedule = ScheduleKind::kOneFOneB;
};

// For each parallel part tried and each row of device_rows: its branches are dealt to g parallel tracks
// (longest first, to the least loaded), devices to what stands before, to the tracks and to what stands
// behind; each part is cut by min_max_splits. What stands before or behind may also join a track. Of all
// device counts and g (above 8 every second or third), those are simulated whose largest share of work per
// device is smallest, as many as the budget allows; none that could win by that share is left out below
// that. Pinned devices go to the parts that hold what is pinned. kUnsupported if the graph has no two
// branches with work in both.
Outcome branches(const Problem& problem, const BranchesOptions& options, Context& context);

}  // namespace espalier
