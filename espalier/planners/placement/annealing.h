#pragma once

// Simulated annealing (Kirkpatrick, Gelatt, Vecchi, Science 1983): a change that is worse by Δ is kept with
// probability exp(−Δ / T), and T falls to zero.

#include "espalier/planners/placement/local_search.h"

namespace espalier::placement {

struct AnnealingOptions {
  double hot = 0.02;  // the first T, as a part of the step that the walk begins with
};

// Takes all that the walk allows. T falls with the square of what is left of that. The draw comes before the
// look, so that a change too bad for it is cut off early.
void anneal(Walk& walk, const AnnealingOptions& options, Rng& rng);

}  // namespace espalier::placement
