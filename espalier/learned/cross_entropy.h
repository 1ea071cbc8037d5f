#pragma once

// The cross-entropy method (Rubinstein, Methodol. Comput. Appl. Probab. 1999; Rubinstein, Kroese, "The
// Cross-Entropy Method", 2004, chapter 4) on placements: a table with a probability for each cluster and
// device, from which samples are drawn, and which moves towards the best of them.
//
//   iteration   samples from the table, judged by the operator engine
//               p_nd ← (1 - α) · p_nd + α · (part of the elite that has n on d),   p_nd ≥ least
//
// What learned placement is measured against: it has no net, no gradient and needs no libtorch. Deviations:
// nodes are clusters (clusters.h); what does not fit takes part at a graded price (score), so that elites
// exist before anything fits; the best so far is one of each elite; no probability falls below `least`
// (Costa, Jones, Kroese, Oper. Res. Lett. 2007: without that the table may settle on what is not best).

#include <cstdint>
#include <functional>

#include "espalier/learned/placement_task.h"
#include "espalier/planners/placement/placer.h"

namespace espalier::placement {

// How far an iteration got, in scores (placement_task.h).
struct CrossEntropyPoint {
  std::uint64_t calls = 0;  // so far
  double best = 0;          // of those that fit so far; 0: none yet
  double elite = 0;         // the worst of the elite
  double certainty = 0;     // mean over nodes of the largest probability
};

struct CrossEntropyOptions {
  TaskOptions task = {.tries_orders = true};
  std::uint64_t iterations = 100;
  std::size_t samples = 64;  // an iteration
  std::size_t elite = 8;     // of them
  double smoothing = 0.3;    // α
  double least = 0.002;      // probability of a device that a node may stand on
  // Called after each iteration; may be empty.
  std::function<void(const CrossEntropyPoint&)> told = {};
};

// The best that was judged and fits, or the reason why nothing does (best_so_far.h). `estimate` is the
// engine's step. Takes a state for each simulator call and ends with the iterations or with the budget. The
// same bytes for the same seed and any number of pool threads. O(iterations · samples · (nodes · devices +
// evaluation)).
Placed cross_entropy(const PlacerInput& input, const CrossEntropyOptions& options, Context& context);

}  // namespace espalier::placement
