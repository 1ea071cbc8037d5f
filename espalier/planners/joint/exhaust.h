#pragma once

// Every plan of a small problem: the search begins with the best of them, so that on small problems nothing
// depends on luck.

#include <vector>

#include "espalier/planners/joint/moves.h"

namespace espalier::joint {

// Judges every partition of the operators into stages, each on any set of devices, which others may use too,
// in tensor-parallel groups of any size for which there are cells, with shares dealt in turn and by speed, up
// to three more in flight than the rule says, in each micro-batch, where these are at most `most_plans`,
// shares and flight apart; those with a device that has more work than the fastest plan so far takes time are
// left out. The `count` fastest, or nothing where there are more plans than that or than the budget is for,
// or locked stages. Duplicable operators and colocation groups do not count as operators by themselves.
std::vector<Proposal> exhaust(const Space& space, const OrderRule& schedule, std::uint64_t most_plans,
                              std::size_t count, Judge& judge, Context& context);

}  // namespace espalier::joint
