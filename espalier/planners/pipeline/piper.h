#pragma once

// Piper's search (Tarnawski, Narayanan, Phanishayee, NeurIPS'21, §4) for synchronous training: stages are
// differences of downsets, so a stage may hold parts of several branches, such as a layer of each. What a
// stage costs comes from the price service, what it holds from synchronous 1F1B; plans are judged by
// simulation. The authors' own model is espalier/planners/literal/piper.h.

#include <cstddef>

#include "espalier/planners/planner.h"

namespace espalier {

struct PiperOptions {
  enum class Choice : std::uint8_t {
    kBottleneck,  // Piper's: the least step time of the slowest stage
    kSimulated,   // the fastest simulated of the plans that no other beats in (bottleneck, held, stages)
  } choice = Choice::kSimulated;
  OrderRule schedule = ScheduleKind::kOneFOneB;
  std::size_t max_downsets = 1'200;  // more: the graph is looked at in coarser pieces
};

// The graph is cut into pieces (the runs of GraphPipe's tree, docs/graphpipe.md), at most 16 to a branch, as
// fine as the limit on downsets allows; from coarse to fine, each search bounded by the one before. In the
// pieces of the finest search the bottleneck is the least over all chains of downsets and numbers of
// replicas, where devices are handed out along a row (device_rows) and memory counts as if stages were a
// chain; stages wait for data alone. kUnsupported, with the reason, where even one piece for each branch has
// too many downsets (2ⁿ for n branches), where pins are given, and where there is nothing to plan;
// kBudgetSpent where the budget ends before any plan.
//
// Not searched: recomputation, tensor parallelism.
//
// A state is a stage, a place in the row and a number of replicas that are priced. O(downsets² · devices ·
// numbers of replicas) of them at most.
Outcome piper(const Problem& problem, const PiperOptions& options, Context& context);

}  // namespace espalier
