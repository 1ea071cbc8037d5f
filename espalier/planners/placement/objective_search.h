#pragma once

// Placements for any objective (placement/objectives.h), and what no placement beats by it.

#include <span>
#include <string>
#include <vector>

#include "espalier/placement/objectives.h"
#include "espalier/planners/placement/placer.h"

namespace espalier::placement {

struct ObjectiveBound {
  double value = 0;  // in the objective's unit
  std::string why;
};

// Of every assignment that fits:
//   latency                        placement_bound
//   max-load, contiguous or not    load_bound: work over devices, with memory
//   price                          the larger of placement_bound on the cheapest device, and each unit where
//                                  its work is cheapest
//   expected, p95                  0: a bound would have to hold for samples
ObjectiveBound objective_bound(const Instance& instance, const Rules& rules, const ObjectiveOptions& options);

struct ObjectivePlaced {
  std::optional<Assignment> assignment = {};  // none: nothing feasible was met, `why` says so
  ObjectiveValue value = {};
  std::size_t by = 0;  // the judge that says so
  std::string why = {};
};

// Begins with the starts and simple_starts. Where the rest of the budget is enough for all assignments, looks
// at each: the value is then the least. Else random changes (moves.h), each kept unless it is worse;
// after many looks without gain a few changes from the best, whatever they cost. Placements that do not fit
// are kept only until one is met that does. Takes a state for each look, O(ObjectiveJudge::judge) each. Never
// worse than the best feasible start. One thread.
//
// Several judges differ in what devices run by: each has an eighth of the budget, and the one by which the
// best was found has the rest.
ObjectivePlaced objective_search(std::span<ObjectiveJudge> judges, const std::vector<Assignment>& starts,
                                 std::uint64_t seed, Context& context);

}  // namespace espalier::placement
