#pragma once

// Lower bounds on the iteration time, each with its scope. No plan within the scope is faster under the
// simulator's rules (simulate.h; times drawn around the usual ones are none of these); gaps are stated
// against the scope kAnyPlan.

#include <string>

#include "espalier/plan/staged_model.h"

namespace espalier {

struct Bound {
  enum class Scope { kTheseStages, kAnyPlan } scope = Scope::kAnyPlan;
  Duration time;
  std::string why;  // "dev0: 4 micro-batches × 6 ms", "60 ms of work on 3 devices"
  friend bool operator==(const Bound&, const Bound&) = default;
};

// These stages on these devices with any order of actions: the largest over devices of head + work + tail,
// and the longest dependent path of one micro-batch. The worked example: 24 ms.
Bound stages_bound(const StagedModel& model, const Cluster& cluster);

// Any plan of this graph on this cluster at this batch and these costs: every PipelinePlan that check_plan
// accepts, with any orders, and every Placement, in micro-batches of any size that divides the batch and that
// the graph takes, not only those that the training offers to planners. The larger of
//  - total work and updates over the devices' speeds: each operator at its cheapest size, on one device or on
//    a tensor-parallel group that it has cells for, with each device's own cost;
//  - the critical path of one sample, each operator where it is quickest.
// The worked example: 20 ms. Memory does not count: plans that do not fit are bounded too.
// O(divisors of the batch · kinds · group sizes · operators).
Bound any_plan_bound(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                     const Training& training);

}  // namespace espalier
