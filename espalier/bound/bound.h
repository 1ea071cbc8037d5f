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
  enum class Plans : std::uint8_t {
    kThatFit,  // in the devices' memories
    kAll,      // as if memory had no end
  };
  Duration time;
  std::string why;  // "dev0: 4 micro-batches × 6 ms", "all work spread over 3 devices"
  friend bool operator==(const Bound&, const Bound&) = default;
};

// These stages on these devices with any order of actions: the largest over devices of head + work + tail,
// and the longest dependent path of one micro-batch. The worked example: 24 ms.
Bound stages_bound(const StagedModel& model, const Cluster& cluster);

// Any plan of this graph on this cluster at this batch and these costs, as far as the scope (not
// kTheseStages) goes: every PipelinePlan that check_plan accepts, with any orders and any groups, and every
// Placement, which has the whole batch as its micro-batch, if it fits in the devices' memories or, with
// kAll, even if it does not. The largest of
//  - the longest chain of one micro-batch, there and back, each operator where it is quickest;
//  - total work and updates over the devices' speeds, what devices cannot do at the beginning and at the end
//    of a step, where few operators have something to read, and what they have no memory for: copies of
//    parameters, and what is kept for the backward passes of micro-batches under way;
//  - the passes, the update and the sum of gradients of one operator, on the best number of replicas; sums of
//    many replicas cross the links that no such many can do without.
// A micro-batch with which some operator alone needs more than a device has is in no plan that fits. The
// worked example: 20 ms. Where no plan fits the bound is that of kAll; where none is within the scope it is
// 0. O(sizes · kinds · group sizes · operators), some hundreds of times, and O(devices²).
Bound plan_bound(const Graph& graph, const Cluster& cluster, const CostTable& costs, const Training& training,
                 Bound::Scope scope, Bound::Plans plans = Bound::Plans::kThatFit);

// The widest scope.
Bound any_plan_bound(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                     const Training& training);

// The narrowest scope that the plan is in.
Bound::Scope scope_of(const PipelinePlan& plan, const Training& training);

}  // namespace espalier
