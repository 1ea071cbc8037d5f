#pragma once

// The verdict on a placement, as Evaluator gives it on pipelines: its fragments (plan/fragments.h), simulated
// in full. Some milliseconds for a thousand operators; what a faster engine is compared with.

#include "espalier/plan/fragments.h"
#include "espalier/sim/evaluator.h"

namespace espalier {

// The placement must pass check_placement, and the micro-batch divide the training's batch and lie in the
// graph's range. A cell that the costs lack is a verdict, and so are lists that break a rule of
// check_schedule or check_fragment_orders (`deadlock`).
Evaluation judge_placement(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                           const Training& training, const Placement& placement,
                           const FragmentOptions& options = {});

}  // namespace espalier
