#pragma once

// The local search that dnn-partitioning's program has as a baseline of its throughput planners (Tarnawski et
// al., NeurIPS 2020; -localSearch): from a random placement on the accelerators the best change of one
// colour's device, again and again, until none makes the largest load less by 10^-5; the best of several
// starts.
//
// As there, CPUs and memory are not looked at, and nothing is asked of the shape of the parts. Random starts
// are ours: the original's come from the C library's generator in the order of a hash table, so single starts
// differ, and the best of ten nearly agrees. Colours that wait for each other are fused before
// (contraction.h).

#include <cstdint>

#include "espalier/planners/context.h"
#include "espalier/planners/literal/max_load.h"

namespace espalier::literal {

struct LocalSearchOptions {
  MaxLoadOptions machine = {};  // accelerators alone
  std::size_t starts = 10;
  std::uint64_t seed = 1;
};

// Of equal changes the first item's, on its first device. A state for each change that is looked at; where
// the budget ends the best placement so far, if any start was begun. Starts run on all threads and share the
// budget. The result may lack memory, and so fail check_max_load with the machine's. No answer where a node
// runs on CPUs only. Throws InputError as max_load does.
MaxLoadResult local_search(const MsrProfile& profile, const LocalSearchOptions& options, Context& context);

}  // namespace espalier::literal
