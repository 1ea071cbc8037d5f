#pragma once

// A first graph pipeline: parallel branches between articulation points become parallel stages.

#include <vector>

#include "espalier/planners/planner.h"

namespace espalier {

struct BranchesOptions {
  std::size_t max_groups = 3;  // groups of branches that are tried, the heaviest first
  OrderRule schedule = ScheduleKind::kOneFOneB;
};

// Branches that run side by side: nothing leads from one to another.
struct BranchGroup {
  std::vector<OperatorId> before;                 // everything that stands before the branches in graph order
  std::vector<std::vector<OperatorId>> branches;  // at least two; each ascending; by first operator
  std::vector<OperatorId> after;                  // everything behind them
  friend bool operator==(const BranchGroup&, const BranchGroup&) = default;
};

// The groups of a graph, in graph order, duplicable operators left out. An operator is serial if every other
// is its ancestor or its descendant (an articulation point); the operators between two neighbouring serial
// ones fall into connected components, and where there are at least two, each is a branch. Components that
// share a colocation group are one. Operators whose results nobody needs stay with what they read.
// O(operators + edges) for each group: it lists what stands before and behind.
std::vector<BranchGroup> branch_groups(const Graph& graph);

// For each group tried: branches are dealt to g parallel tracks (longest first, to the least loaded), devices
// to what stands before, to the tracks and to what stands behind; each part is cut by min_max_splits. What
// stands before or behind may also join a track. All g and device counts are simulated. kUnsupported if the
// graph has no two branches with work in both.
Outcome branches(const Problem& problem, const BranchesOptions& options, Context& context);

}  // namespace espalier
