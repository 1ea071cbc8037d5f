#include "testing/random_placements.h"

#include <map>

namespace espalier::testing {
namespace {

// `choose` says where an operator stands, unless one of its group already does somewhere.
template <class Choose>
Placement placed(const Graph& graph, const Choose& choose) {
  Placement placement;
  std::map<std::uint32_t, DeviceId> of_group;
  for (std::size_t i = 0; i < graph.operators().size(); ++i) {
    DeviceId device = choose(OperatorId(i), placement);
    if (const auto group = graph.operators()[i].colocation) {
      device = of_group.try_emplace(*group, device).first->second;
    }
    placement.device.push_back(device);
  }
  return placement;
}

}  // namespace

Placement random_placement(Rng& rng, const Graph& graph, const Cluster& cluster) {
  const std::uint64_t stays = rng.below(4);  // of four
  return placed(graph, [&](OperatorId op, const Placement& so_far) {
    const auto before = graph.predecessors(op);
    const DeviceId device(rng.below(cluster.devices().size()));
    const bool follows = !before.empty() && rng.below(4) < stays;
    return follows ? so_far.device[before[rng.below(before.size())].index()] : device;
  });
}

Placement contiguous_placement(const Graph& graph, const Cluster& cluster) {
  return placed(graph, [&](OperatorId op, const Placement&) {
    return DeviceId(op.index() * cluster.devices().size() / graph.operators().size());
  });
}

Placement interleaved_placement(const Graph& graph, const Cluster& cluster) {
  return placed(graph, [&](OperatorId op, const Placement&) {
    return DeviceId(op.index() % cluster.devices().size());
  });
}

Placement with_random_levels(Rng& rng, const Graph& graph, Placement placement) {
  const std::uint64_t rises = rng.below(4);  // of four
  placement.level.assign(graph.operators().size(), 0);
  for (std::size_t v = 0; v < graph.operators().size(); ++v) {
    if (graph.operators()[v].duplicable) continue;
    std::uint32_t level = 0;
    for (const OperatorId u : graph.predecessors(OperatorId(v))) {
      if (graph.op(u).duplicable) continue;
      const bool same = placement.device[u.index()] == placement.device[v];
      level = std::max(level, placement.level[u.index()] + (same ? 0U : 1U));
    }
    placement.level[v] = level + (rng.below(4) < rises ? 1U : 0U);
  }
  return placement;
}

}  // namespace espalier::testing
