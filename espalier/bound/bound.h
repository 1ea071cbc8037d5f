#pragma once

// Lower bounds on the iteration time, each with its scope. No plan within the scope is faster under the
// simulator's rules; gaps are stated against the scope kAnyPlan.

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

// Any plan without tensor parallelism of this graph on this cluster at this batch, in micro-batches of the
// sizes that the training allows: total work over the devices' speeds (each operator at its fastest size and
// with each device's own cost), and the critical path of one micro-batch. The worked example: 20 ms.
Bound any_plan_bound(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                     const Training& training);

}  // namespace espalier
