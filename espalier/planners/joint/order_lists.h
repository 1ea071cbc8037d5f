#pragma once

// Lists of orders for the fastest plans of a joint search: where a list for each device is faster than every
// rule, the plan carries it (planners/orders/search.h).

#include <span>

#include "espalier/planners/joint/space.h"

namespace espalier::joint {

// Searches an order for each of the first plans that differ in more than their rules, and judges those that
// make the best plan so far at least one part in a hundred faster: lists belong to their stages, so a plan
// that carries them is harder to edit. Halves of backward as the space says. Takes a state for each step of
// an order that is judged, the context's budget at most, dealt to the plans beforehand: the same for any
// number of threads.
void search_lists(const Space& space, std::span<const Proposal> plans, Judge& judge, Context& context);

// By the same measure devices in a loop or a V, with lists that are made for that (pipeline/looped.h,
// LoopedOptions::briefly). Not where something is pinned or locked.
void try_loops(const Space& space, Judge& judge, const Context& context);

}  // namespace espalier::joint
