#include "testing/random_placements.h"

#include <map>

namespace espalier::testing {

Placement random_placement(Rng& rng, const Graph& graph, const Cluster& cluster) {
  Placement placement;
  std::map<std::uint32_t, DeviceId> of_group;
  const std::uint64_t stays = rng.below(4);  // of four
  for (std::size_t i = 0; i < graph.operators().size(); ++i) {
    const auto before = graph.predecessors(OperatorId(i));
    DeviceId device(rng.below(cluster.devices().size()));
    if (!before.empty() && rng.below(4) < stays) {
      device = placement.device[before[rng.below(before.size())].index()];
    }
    if (const auto group = graph.operators()[i].colocation) {
      device = of_group.try_emplace(*group, device).first->second;
    }
    placement.device.push_back(device);
  }
  return placement;
}

}  // namespace espalier::testing
