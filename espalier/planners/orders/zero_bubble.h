#pragma once

// Zero-bubble orders made from the times of a plan's stages and the memory of its devices: the fastest, by
// simulation, of those that the heuristics fill in (zero_bubble_fill.h, zero_bubble_v.h).

#include <optional>

#include "espalier/cluster/cluster.h"
#include "espalier/schedule/stage_line.h"

namespace espalier {

// One stage a device (greedy) or two in a V. `limit`: at most so many micro-batches of all stages of a device
// at once: p is ZB-1p and ZB-V, 2p is ZB-2p; else what fits. Where nothing fits, the order that comes
// closest.
GeneratedOrders zero_bubble_greedy(const StagedModel& model, const Cluster& cluster,
                                   std::optional<std::uint32_t> limit = {});
GeneratedOrders zero_bubble_v(const StagedModel& model, const Cluster& cluster,
                              std::optional<std::uint32_t> limit = {});

}  // namespace espalier
