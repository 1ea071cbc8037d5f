#pragma once

// Operators that stand together as one node, and operators that lead to the loss: what a graph is before its
// structure is looked at.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "espalier/graph/graph.h"

namespace espalier {

// Operators that must stand together, as one node each, with all that lies on paths between them; so the
// contracted graph has no cycle and its nodes are convex. O((n + e) · log n).
struct Contraction {
  std::vector<std::vector<OperatorId>> nodes;         // ascending each; in a legal order, by first operator
  std::vector<std::optional<std::uint32_t>> node_of;  // by operator; none outside the subset
  std::vector<std::vector<std::uint32_t>> predecessors, successors;  // of nodes; ascending, each once
};
Contraction contract_colocation(const Graph& graph, std::span<const OperatorId> subset);

// The operators that decide the structure: those that lead to the loss (all, if there is none), those
// colocated with them and what these need; without duplicables. Ascending. What is left out hangs off at the
// side and never leads back: running statistics, further outputs. O(n + e).
std::vector<OperatorId> backbone(const Graph& graph);

}  // namespace espalier
