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
  enum class Recompute : std::uint8_t {
    kNever,
    kStages,  // all of a stage, or nothing
    kPieces,  // as few pieces of a stage as fit, those that free most bytes per time first
  } recompute = Recompute::kPieces;
  bool tensor_parallel = true;  // stages on groups of as many devices as there are cells for
  OrderRule schedule = ScheduleKind::kOneFOneB;
  std::size_t max_downsets = 1'200;  // more: the graph is looked at in coarser pieces
};

// The graph is cut into pieces (the runs of GraphPipe's tree, docs/graphpipe.md, cut where pins change), at
// most 16 to a branch, as fine as the limit on downsets allows. Levels go from coarse to fine, in each all
// micro-batch sizes and rows of devices at the same time; each search is bounded by its own of the level
// before and, with kSimulated, by the fastest plan so far. Where the budget will not be enough for a level,
// the searches that took most in the one before go no further. In the pieces of the finest search the
// bottleneck is the least, up to that, over all chains of downsets, numbers of replicas, degrees and, with
// kStages, what is recomputed; devices are handed out along a row (device_rows) and memory counts as if
// stages were a chain; stages wait for data alone.
//
// A stage computes again only what it must to fit. With kPieces it is Piper's knapsack: pieces are taken in
// the order of bytes freed per time until they fit. Missing cells forbid a degree. A stage with pinned
// operators stands on their device alone, outside the row; a device may get several, no two in a row, and
// each counts the pinned work of the others.
//
// Where its estimate rules all plans out, it proposes what fits into the least larger share of memory with
// the smallest micro-batch (memory_ladder.h). kUnsupported, with the reason, where even one piece for each
// branch has too many downsets (2ⁿ for n branches) and where there is nothing to plan; kBudgetSpent where the
// budget ends before any plan.
//
// A state is a stage, a place in the row and a number of replicas that are priced. O(downsets² · devices ·
// numbers of replicas · degrees) of them at most.
Outcome piper(const Problem& problem, const PiperOptions& options, Context& context);

}  // namespace espalier
