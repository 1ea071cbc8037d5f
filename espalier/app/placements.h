#pragma once

// Placements in verbs: given by hand in place of planning, and plan files of either sort judged as part of a
// job.

#include <string>

#include "espalier/app/planning.h"
#include "espalier/plan/fragments.h"

namespace espalier {

// A placement that check_placement accepts, judged as it stands: in one micro-batch, if the job allows the
// whole batch as one, else in the largest that it allows. Throws InputError where it breaks a pin, or where
// the orders do not fit it.
Planned plan_placement(const PlanningJob& job, const Placement& placement, const ChosenOrders& schedule);

// One that is given, as above; where no orders are asked for, with levels and orders that follow its
// operators' timeline if it is faster so (with_levels), whatever levels it has.
Planned plan_given_placement(const PlanningJob& job, const Placement& placement,
                             const ChosenOrders& schedule);

// A plan file, or a file with a placement in any form that --placement takes, judged with the job's model,
// cluster, costs and training. Throws InputError where it is of another model or batch, names a device that
// the cluster lacks, or has an order that deadlocks with these costs.
Judged judge_file(const PlanningJob& job, const std::string& path);

// A job that knows the costs of these micro-batch sizes too, and its bound holds for them.
PlanningJob with_sizes(PlanningJob job, const std::vector<BatchSize>& sizes);

// One row for each device in use: operators, fragments, modules, work, weights, what it sends.
Table placement_table(const PlanningJob& job, const Judged& judged);

// "318 operators in 5 fragments, depth 4": of a placement.
std::string placement_text(const StagedModel& fragments, std::size_t operators);

}  // namespace espalier
