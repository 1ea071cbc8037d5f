#pragma once

// What a plan that fits must hold: copies of parameters with their gradients and the optimizer's state, and
// what micro-batches under way keep for their backward pass. Internal to bounds.

#include <span>

#include "espalier/bound/least_costs.h"

namespace espalier::internal {

// Fills Way::kept of `costs`, and says what there is room for. Where the parameters alone do not fit, or the
// graph has its backward pass in it, memory does not count. O(operators · inputs · ways).
Room find_kept(const Graph& graph, const Cluster& cluster, const CostTable& table, const Training& training,
               std::span<const BatchSize> sizes, const Chains& chains, LeastCosts& costs);

}  // namespace espalier::internal
