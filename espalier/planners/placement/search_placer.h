#pragma once

// The search of placements as a placer: begins with what constructive placers find, goes on by
// default_placement_search, under the engine's usual rules.

#include "espalier/planners/placement/placer.h"

namespace espalier::placement {

struct SearchPlacerOptions {
  std::uint64_t max_looks = 40'000;
  std::uint64_t max_tasks = 60'000'000;               // looks times tasks: some seconds
  Rules rules = {.memory = Rules::Memory::kAllHeld};  // what placers promise to fit
};

// Never slower, by the engine, than the best of one-device, expert, m-etf, heft and multilevel; `estimate` is
// the engine's step. Takes a state for each look, those of the starts too. Tasks run by the upward ranks of
// the instance (MeanCosts), so a start keeps its meaning whatever moves.
Placed search_placer(const PlacerInput& input, const SearchPlacerOptions& options, Context& context);

}  // namespace espalier::placement
