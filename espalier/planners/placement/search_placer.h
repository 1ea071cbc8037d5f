#pragma once

// The search of placements as a placer: begins with what constructive placers find, goes on by
// default_placement_search, under the engine's usual rules.

#include <vector>

#include "espalier/placement/objectives.h"
#include "espalier/planners/placement/placer.h"

namespace espalier::placement {

struct SearchPlacerOptions {
  std::uint64_t max_looks = 40'000;
  std::uint64_t max_tasks = 60'000'000;  // looks times tasks: some seconds
  Rules rules = {};                      // memory: what is alive, which is what a step needs
  std::vector<Assignment> starts = {};   // beside those of placers
};

// Never slower, by the engine, than the best of one-device, expert, m-etf, heft and multilevel; `estimate` is
// the engine's step. Takes a state for each look, those of the starts too, by each of the usual orders
// (usual_orders); the better one is in `orders`. Changes are those that the input's guide proposes, where it
// has one. `others` are the starts: the search looks at one micro-batch
// by itself, and operator by operator.
Placed search_placer(const PlacerInput& input, const SearchPlacerOptions& options, Context& context);

// What a placer finds where a device must hold what is alive only (Rules::Memory::kLive): placers count all
// that a device touches, so where one finds nothing it is asked again with up to 8 times the memory. The
// answer may not fit.
Placed place_in_live_memory(const PlacerInput& input, const Placer& placer, Context& context);

// Where searches begin: what one-device, expert, m-etf, heft, … and multilevel find (place_in_live_memory
// under rules that count what is alive). Takes at most a quarter of what is left of the budget.
std::vector<Assignment> placer_starts(const PlacerInput& input, const Rules& rules, Context& context,
                                      Placed* failed = nullptr);

// The best by an objective (placement/objectives.h) instead of the step: the same starts, then
// objective_search by each of the usual orders. Fits as placers promise. `why` says the value and the bound;
// `estimate` stays empty. The least price is looked for on few devices too, and is unsupported where the
// input has no prices.
Placed objective_placer(const PlacerInput& input, Objective objective, Context& context);

}  // namespace espalier::placement
