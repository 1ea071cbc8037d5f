#pragma once

// What a step takes on average where no action takes the same time twice.
//
// A plan's iteration is simulated with one time for each action. Measured times scatter, and a device that
// waits, waits for whichever worker is slower at the moment: the mean of a maximum is more than the maximum
// of the means. How much depends on the plan, so it is drawn: each action's time, and each device's speed in
// a step, is multiplied by a number around 1, again and again, and the simulated iterations are averaged.
// Messages do not scatter. The first action of a device in a step takes longer than others, since the device
// has waited.

#include "espalier/cluster/cluster.h"
#include "espalier/cost/cost_table.h"
#include "espalier/schedule/schedule.h"

namespace espalier {

// Draws are normal, one for each action and one for all actions of a device in the step, together at least a
// tenth, and come in pairs mirrored around 1, so a plan that waits for nobody keeps its time. The same on
// every machine. At most 64 draws, fewer from 30,000 tasks on, two at least; each is a run of the engine.
// Without any spread it is one run.
Duration expected_iteration(const StagedModel& model, const Cluster& cluster, const Schedule& schedule,
                            const ActionScatter& scatter);

}  // namespace espalier
