#pragma once

// Placements for tests: random ones, and the two extremes. Colocation groups stand together, where the first
// of them would.

#include "espalier/base/rng.h"
#include "espalier/plan/plan.h"

namespace espalier::testing {

// Most operators stand where one that they read from stands, so that fragments have more than one.
Placement random_placement(Rng& rng, const Graph& graph, const Cluster& cluster);

// A run of operators on each device, as many on one as on another: few fragments.
Placement contiguous_placement(const Graph& graph, const Cluster& cluster);

// Every operator on another device than the one before it, in turn: many fragments, of few operators.
Placement interleaved_placement(const Graph& graph, const Cluster& cluster);

// The placement with levels that rise as little as they may, and now and then by one more: more fragments.
Placement with_random_levels(Rng& rng, const Graph& graph, Placement placement);

}  // namespace espalier::testing
