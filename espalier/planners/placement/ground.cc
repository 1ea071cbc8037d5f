#include "espalier/planners/placement/ground.h"

#include "espalier/planners/placement/ranks.h"

namespace espalier::placement {

Ground::Ground(const Instance& whole, const Rules& rules, const std::vector<DeviceOrders>& orders,
               const Clusters* clusters)
    : whole_(whole),
      clusters_(clusters),
      joined_(clusters ? std::optional(joined_units(whole, *clusters)) : std::nullopt),
      around_(joined_ ? *joined_ : whole),
      engines_(engines_by(joined_ ? *joined_ : whole, rules, orders)) {}

Assignment Ground::from_units(const Assignment& units) const {
  return clusters_ ? devices_of_clusters(whole_, *clusters_, units) : units;
}

Assignment Ground::to_units(const Assignment& here) const {
  return clusters_ ? assignment_of_clusters(*clusters_, here) : here;
}

}  // namespace espalier::placement
