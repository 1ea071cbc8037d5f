#pragma once

// Random placements for property tests: any device for each operator, colocation groups together.

#include "espalier/base/rng.h"
#include "espalier/plan/plan.h"

namespace espalier::testing {

// Most operators stand where one that they read from stands, so that fragments have more than one.
Placement random_placement(Rng& rng, const Graph& graph, const Cluster& cluster);

}  // namespace espalier::testing
