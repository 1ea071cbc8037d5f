#pragma once

// The best pipeline plan of a tiny problem, found by trying all of them: what heuristics are measured
// against.

#include <optional>

#include "espalier/planners/planner.h"

namespace espalier::testing {

struct BruteForceResult {
  std::optional<PipelinePlan> plan;  // none if nothing fits
  Duration iteration;
  std::uint64_t tried = 0;
};

// Every partition of the operators into stages with an acyclic stage graph, every way to give the stages
// disjoint device sets (replicas, or tensor-parallel groups of each size that there are cells for, of devices
// that follow each other), every superset of the data edges as `after` edges that keeps stage order,
// every micro-batch size; with 1F1B the rule's limits, 1, 2 or 3 more for all stages, and
// 8, 16 … more for those that hold more than some other. Duplicable
// operators are not allowed. Exponential: at most five operators and five devices, and
// not both.
BruteForceResult brute_force(const Problem& problem, ScheduleKind schedule = ScheduleKind::kOneFOneB);

// The same where each stage has any set of devices, which others may use as well, and no `after` edges but
// those of data: (2^devices - 1)^stages ways to deal the devices, groups apart.
BruteForceResult brute_force_sharing(const Problem& problem);

}  // namespace espalier::testing
