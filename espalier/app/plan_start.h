#pragma once

// A plan file, perhaps edited by hand, as the beginning of planning: what it says of costs and sizes, its
// locked stages, and all of it where it is a whole legal plan.

#include <string>
#include <vector>

#include "espalier/app/planning_job.h"

namespace espalier {

// The path from here of the cost file that the plan was made with; empty if it names none.
std::string costs_of_start(const EditedPlan& start, const std::string& path);

// Micro-batches of the locked stages, or of the placement; else those that were allowed.
std::vector<BatchSize> sizes_of_start(const PlanFile& start);

// Fills the job's `start` and `locked`, or its `placement`, with a note for each edited stage. A model that
// has changed since is no reason to refuse it: then only its locked stages count. Throws InputError naming
// the place in the file where stages contradict each other, the model or the job. O(operators of the stages ·
// log).
void add_start(const EditedPlan& start, const std::string& path, PlanningJob& job);

}  // namespace espalier
