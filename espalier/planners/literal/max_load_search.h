#pragma once

// Max-load (max_load.h) over all placements: any node on any device, colours together; no chain of downsets
// is asked for. What dnn-partitioning's integer program without contiguity optimises, by simulated annealing.

#include <cstdint>

#include "espalier/planners/context.h"
#include "espalier/planners/literal/max_load.h"

namespace espalier::literal {

struct MaxLoadSearchOptions {
  MaxLoadOptions machine = {};  // `space` is not looked at
  std::size_t chains = 4;
  std::uint64_t seed = 1;
};

// The best placement found that fits; no proof. Takes a state for each change that is looked at, O(outputs
// that touch what moves) each; chains share the budget and run on all threads. `devices` of the result are in
// the order of the machine's, those in use. Throws InputError as max_load does, but for cycles and
// directions, which do not matter here.
MaxLoadResult max_load_search(const MsrProfile& profile, const MaxLoadSearchOptions& options,
                              Context& context);

}  // namespace espalier::literal
