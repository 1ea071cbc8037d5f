#pragma once

// What the links of a cluster carry in a step. The partitioner counts each stage's transfers by themselves
// (graphpipe_prices.h); where several devices of a host send at once, they share the links of their host.

#include <cstdint>
#include <vector>

#include "espalier/cluster/cluster.h"
#include "espalier/planners/pipeline/graphpipe_prices.h"

namespace espalier::internal {

// Of stages by what they hold, each at one micro-batch size, wherever their replicas stand.
class StepTraffic {
 public:
  struct StageAt {
    const PlaceRanges* places = nullptr;
    PlacePrices* prices = nullptr;  // of its micro-batch size
  };
  // All of one linearization. O(tensors that cross, with log).
  StepTraffic(const Problem& problem, const std::vector<StageAt>& stages);

  // How long messages and sums of gradients hold each link, in ns, with these devices by stage, one for each
  // replica: what any schedule takes at least. Micro-batches go to replicas in turn. O(crossings · replicas ·
  // depth of the cluster).
  std::vector<std::int64_t> on_links(const std::vector<std::vector<DeviceId>>& devices) const;
  // The most of them.
  std::int64_t busiest(const std::vector<std::vector<DeviceId>>& devices) const;

 private:
  struct Crossing {  // all tensors from one stage to another
    std::size_t from = 0, to = 0;
    std::int64_t samples_at_once = 1;  // of a piece that has one sender and one receiver
    Bytes forward, backward;           // of such a piece
  };

  const Problem& problem_;
  std::vector<std::int64_t> micro_batch_;  // by stage, in samples
  std::vector<Bytes> gradients_;           // by stage: what replicas add up
  std::vector<Crossing> crossings_;
};

}  // namespace espalier::internal
