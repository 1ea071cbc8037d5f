#pragma once

// The min-max chain split with replication: PipeDream's partitioning problem (Narayanan et al., SOSP'19,
// §3.1) under the memory of synchronous 1F1B, with pins.

#include <vector>

#include "espalier/planners/candidate.h"
#include "espalier/planners/pipeline/chain.h"
#include "espalier/planners/pipeline/device_row.h"

namespace espalier {

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
  friend bool operator==(const ChainSplit&, const ChainSplit&) = default;
};

struct SplitOptions {
  enum class Keep : std::uint8_t {
    kFront,            // splits that no other beats in (bottleneck, stages)
    kLeastBottleneck,  // of those with the least bottleneck the one with the fewest stages
  } keep = Keep::kFront;
  OrderRule schedule = ScheduleKind::kOneFOneB;  // says how many micro-batches a stage holds
  Duration limit = Duration::max();              // splits with a larger bottleneck are of no use
  std::size_t most_replicas = kMaxMicroBatches;  // of a stage
  std::int64_t memory_percent = 100;             // of each device's memory that stages may take
};

// Splits of the chain over `devices`: stages are contiguous; a stage without pinned blocks stands on a run of
// neighbours in the row, in the row's order, any of which may be left out; one with pinned blocks stands on
// their device alone, wherever that is, and all pinned blocks of a stage are that device's. A pinned device
// may get several stages, no two in a row; it is not to be in `devices`. Minimised is the largest of, per
// step,
//   - a stage: over its replicas, micro-batches (dealt evenly by what the whole chain takes on each kind of
//     device) × (forward and backward, overhead of actions, endpoints of its border messages) + the update; +
//     the all-reduce of its gradients; a pinned device in each of its stages with the work of its pinned
//     blocks elsewhere;
//   - a link between neighbouring stages, from the last replica of the one to the first of the next: the
//     first one's largest share × the longer of the two directions.
// A stage fits if Chain::price says so for every replica. Ascending bottleneck, descending stages; empty if
// nothing fits, or some block is torn between two pins. Exact: no such split is better (a test tries all).
// If the context's budget ends first, the best of a coarser chain, perhaps none.
//
// A state is a run of devices at a cut, and each 128 comparisons of its answers. Up to blocks · devices² / 2
// runs, each O(blocks · answers).
std::vector<ChainSplit> min_max_splits(const Chain& chain, const DeviceTable& table,
                                       const std::vector<DeviceId>& devices, std::int64_t micro_batches,
                                       const SplitOptions& options, Context& context);

// Where nothing fits: the same with the least larger share of memory with which some split does
// (memory_ladder.h); empty where none does. `options.memory_percent` is not looked at.
std::vector<ChainSplit> closest_splits(const Chain& chain, const DeviceTable& table,
                                       const std::vector<DeviceId>& devices, std::int64_t micro_batches,
                                       SplitOptions options, Context& context);

// The stages of a split, each without `after`; replicas get equal shares.
std::vector<StageDraft> drafts_of(const Chain& chain, const ChainSplit& split);
// The same, with shares by which the last of a stage's replicas ends as early as can be.
std::vector<StageDraft> drafts_of(const Chain& chain, const ChainSplit& split, const DeviceTable& table);

}  // namespace espalier
