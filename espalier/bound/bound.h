#pragma once

// Lower bounds on the iteration time, each with its scope. No plan within the scope is faster under the
// simulator's rules (simulate.h; times drawn around the usual ones are none of these). Proofs and worked
// numbers: docs/bounds.md.

#include <cstdint>
#include <string>

#include "espalier/plan/staged_model.h"

namespace espalier {

struct Bound {
  enum class Scope : std::uint8_t {
    kTheseStages,   // these stages on these devices
    kAnyPlan,       // micro-batches of any size that divides the batch and that the graph takes
    kOfferedSizes,  // of those that the training offers, each stage by itself
    kOneSize,       // of those that the training offers, one for all stages
  } scope = Scope::kAnyPlan;
  Duration time;
  std::string why;  // "dev0: 4 micro-batches × 6 ms", "all work spread over 3 devices"
  friend bool operator==(const Bound&, const Bound&) = default;
};

// These stages on these devices with any order of actions: the largest over devices of head + work + tail,
// and the longest dependent path of one micro-batch. The worked example: 24 ms.
Bound stages_bound(const StagedModel& model, const Cluster& cluster);

// Any plan of this graph on this cluster at this batch and these costs, as far as the scope (not
// kTheseStages) goes: every PipelinePlan that check_plan accepts, with any orders and any groups, and every
// Placement, which has the whole batch as its micro-batch. The largest of
//  - the longest chain of one micro-batch, there and back, each operator where it is quickest;
//  - total work and updates over the devices' speeds, and what devices cannot do at the beginning and at the
//    end of a step, where few operators have something to read;
//  - the passes, the update and the sum of gradients of one operator, on the best number of replicas.
// The worked example: 20 ms. Memory does not count: plans that do not fit are bounded too. Where no plan is
// within the scope it is 0. O(sizes · kinds · group sizes · operators), some tens of times, and O(devices²).
Bound plan_bound(const Graph& graph, const Cluster& cluster, const CostTable& costs, const Training& training,
                 Bound::Scope scope);

// The widest scope.
Bound any_plan_bound(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                     const Training& training);

// The narrowest scope that the plan is in.
Bound::Scope scope_of(const PipelinePlan& plan, const Training& training);

}  // namespace espalier
