#pragma once

// A placer as a planner: the instance of a problem, the placer's answer, judged as placements are judged
// (fragments of the graph; planners/candidate.h).
//
// Placers count what is touched as held all step long, and the judge counts what is held when. So where a
// placer finds nothing that fits, it is asked again with more memory than there is, and where the judge finds
// a device too full, with less on that device.

#include "espalier/planners/placement/placer.h"
#include "espalier/planners/planner.h"

namespace espalier::placement {

struct PlacementPlannerOptions {
  TraversalOrder order = TraversalOrder::kTopoGenerations;
  std::uint64_t seed = 1;
  const ProposalGuide* guide = nullptr;  // PlacerInput::guide
};

// The placement with levels and orders from its timelines operator by operator (placement/levels.h): for the
// orders that devices may run by, but for those in which it takes 10 % longer than in another, with runs of
// either sort, each result once. None where there are none, or it divides operators that the instance keeps
// together.
std::vector<Placement> with_levels(const Graph& graph, const Instance& instance, const Placement& placement,
                                   std::span<const DeviceOrders> orders);

// What the actions of the fullest device take together, 10 us each, on devices of kinds for which nobody
// measured that. Whoever chooses among fragments of one placement adds it to their step: thousands of actions
// are slower than they look.
Duration unmeasured_actions(const PipelinePlan& fragments, const Cluster& cluster, const CostTable& costs);

// Each answer is judged as it is and with levels by the placer's own orders and by the usual ones
// (usual_orders); the fastest counts. One micro-batch of the whole batch, or
// the largest that the training allows. Pins are kept; --start and locked stages are not looked at. The
// estimate is the placer's, where one micro-batch is the whole batch. Throws InputError as make_instance
// does.
Outcome plan_by_placer(const Problem& problem, const Placer& placer, const PlacementPlannerOptions& options,
                       Context& context);

}  // namespace espalier::placement
