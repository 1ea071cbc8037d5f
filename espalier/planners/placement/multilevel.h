#pragma once

// Coarsen, place, refine: heavy edges are contracted without cycles (coarsening.h) until a few hundred tasks
// are left; these are placed by every list method, the best by the engine is kept; on the way back units on a
// border move to a neighbour's device where the engine says that the step is no longer for it.
//
// On the given instance the way back ends with what m_etf, heft and one_device say there, and goes on from
// the best: so it is never slower than any of them, by the engine.

#include <cstdint>

#include "espalier/placement/engine.h"
#include "espalier/planners/placement/placer.h"

namespace espalier::placement {

struct MultilevelOptions {
  Rules rules = {.memory = Rules::Memory::kAllHeld};
  std::size_t coarsest = 400;      // tasks at which coarsening ends
  std::uint64_t work = 3'000'000;  // for each level: moves looked at times tasks
  std::uint64_t seed = 1;          // of the order in which units are looked at
};

// A state is a move that was looked at. Work is bounded by `work` on each level and the levels halve, so all
// in all O((tasks + reads) · log + work · log tasks). `estimate` is the engine's time, by the priorities that
// it gives.
Placed multilevel(const Instance& instance, const MultilevelOptions& options, Context& context);

}  // namespace espalier::placement
