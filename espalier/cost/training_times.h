#pragma once

// What each operator of a graph takes by itself: what a placement is simulated with, and what orders and
// policies see as an operator's time.

#include <vector>

#include "espalier/cost/cost_table.h"

namespace espalier {

// By operator, on one kind. In a training graph: its own time by its role (OperatorCosts), and each update
// takes a share of what the optimizer takes for all of them together, by parameter bytes, so that the shares
// add up to update_time of the sum to the nanosecond; the first update pays what is fixed. In a forward
// graph: forward and backward. The sum over a training graph is the sum over its forward graph plus one
// update of all, where every operator with a gradient leads to the loss (a forward graph cannot tell).
std::vector<Duration> operator_durations(const Graph& graph, const Cluster& cluster, const CostTable& table,
                                         const OperatorCosts& costs, KindId kind, OptimizerKind optimizer);

// The same where cells may be missing: whoever has none takes no time, updates apart.
std::vector<Duration> operator_durations(const Graph& graph, const Cluster& cluster, const CostTable& table,
                                         const KindCosts& costs, KindId kind, OptimizerKind optimizer);

// What no operator's cell says, such as an overhead or an update, on a device of another speed than its
// kind's costs are of.
Duration at_speed(Duration time, const DeviceKind& kind);

}  // namespace espalier
