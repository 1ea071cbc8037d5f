#pragma once

// Plans to begin with where devices are of several kinds.

#include <vector>

#include "espalier/planners/joint/space.h"

namespace espalier::joint {

// Chains with a stage for each kind: all its devices are replicas of one stage, cut where the slowest takes
// least time. Kinds follow each other in every order, of more than three kinds from the fastest to the
// slowest and back. Planners that look at devices in one order, or at equal shares, seldom meet these;
// borders, branches and sizes are for the search to move. Nothing where devices are of one kind, or something
// is locked or pinned. O(orders · log time · kinds · log operators).
std::vector<Proposal> kinds_in_turn(const Space& space, const OrderRule& schedule);

}  // namespace espalier::joint
