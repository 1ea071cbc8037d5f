#pragma once

// The min-max chain split with replication: PipeDream's partitioning problem (Narayanan et al., SOSP'19,
// §3.1) under the memory of synchronous 1F1B.

#include <vector>

#include "espalier/planners/pipeline/chain.h"
#include "espalier/planners/planner.h"

namespace espalier {

struct PipeDreamOptions {
  enum class Order : std::uint8_t { kGraph, kDepthFirst, kBoth } order = Order::kBoth;
  enum class Choice : std::uint8_t {
    kBottleneck,  // PipeDream's own: the least bottleneck, whatever its depth
    kSimulated,   // the fastest simulated of the plans that no other beats in both bottleneck and depth
  } choice = Choice::kSimulated;
  OrderRule schedule = ScheduleKind::kOneFOneB;
};

// A contiguous stage of the answer.
struct ChainStage {
  std::size_t first_block = 0;
  std::size_t last_block = 0;  // exclusive
  std::vector<DeviceId> devices;
  friend bool operator==(const ChainStage&, const ChainStage&) = default;
};
struct ChainSplit {
  std::vector<ChainStage> stages;
  Duration bottleneck;  // the largest stage or link time of one step
};

// The per-step time of blocks [first, last) on `devices` as replicas: the largest share of micro-batches ×
// work, endpoints of its border messages included, + all-reduce of its gradients + the update.
Duration chain_stage_time(const Problem& problem, const Chain& chain, std::size_t first, std::size_t last,
                          const std::vector<DeviceId>& devices, std::int64_t micro_batches);

// All splits of the chain over devices[d…] (consecutive runs in that order; devices may be skipped) that no
// other beats in (bottleneck, stages): ascending bottleneck, descending stages. Empty if nothing fits by the
// chain's memory estimate. Exact over contiguous stages, consecutive replicas, links that are all alike, and
// that estimate. O(blocks² · devices² · answers).
std::vector<ChainSplit> min_max_splits(const Problem& problem, const Chain& chain,
                                       const std::vector<DeviceId>& devices, std::int64_t micro_batches,
                                       Context& context);

Outcome pipedream(const Problem& problem, const PipeDreamOptions& options, Context& context);

}  // namespace espalier
