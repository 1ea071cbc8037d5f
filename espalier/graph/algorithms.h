#pragma once

// What planners ask of a graph's structure. Every function is pure and deterministic; n = operators,
// e = edges (predecessors, mutation order included).

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "espalier/base/ids.h"
#include "espalier/base/units.h"
#include "espalier/graph/graph.h"

namespace espalier {

// ---- Paths

// depth[i] = most edges on a path from an operator without predecessors to i. O(n + e).
std::vector<std::uint32_t> depths(const Graph& graph);

// Longest path by the operators' weights (not negative): before i, without i; and from i to the end, with i.
// In the placement literature: t-level and b-level. O(n + e).
std::vector<Duration> top_levels(const Graph& graph, std::span<const Duration> weights);
std::vector<Duration> bottom_levels(const Graph& graph, std::span<const Duration> weights);

struct CriticalPath {
  Duration length;
  std::vector<OperatorId> operators;  // a heaviest path, from its first to its last; the one of smallest ids
};
CriticalPath critical_path(const Graph& graph, std::span<const Duration> weights);

// ---- Stages

// Whether no path leaves the set and comes back, which is what lets a stage run as one piece. The set is
// ascending. A path that leaves through a duplicable operator does not count: each stage has its own copy.
// O(edges of the operators between the set's first and last).
bool is_convex(const Graph& graph, std::span<const OperatorId> set);

// ---- Legal execution orders of all operators. O((n + e) · log n) at most.

std::vector<OperatorId> graph_order(const Graph& graph);          // by id
std::vector<OperatorId> depth_first_order(const Graph& graph);    // goes down a branch as far as it can
std::vector<OperatorId> breadth_first_order(const Graph& graph);  // by depth, then id

// Whether each operator stands exactly once and behind its predecessors.
bool is_legal_order(const Graph& graph, std::span<const OperatorId> order);

}  // namespace espalier
