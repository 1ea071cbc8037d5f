#pragma once

// What places of a linearization cost as a stage: GraphPipe's stage prices, for any set of pieces.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "espalier/planners/pipeline/chain.h"
#include "espalier/planners/pipeline/device_row.h"
#include "espalier/planners/pipeline/graphpipe_tree.h"

namespace espalier::internal {

enum class MemoryRule : std::uint8_t {
  kAll,      // what the simulator finds at least: tensors that arrive and wait count
  kLiteral,  // states, saved activations of the samples in flight, workspace: the paper's
};

// How a stage runs: in tensor-parallel groups, with what it computes again instead of keeping it.
struct StageWay {
  std::uint32_t degree = 1;
  PlaceRanges again = {};  // of its places; operators that write their inputs are left out
  friend auto operator<=>(const StageWay&, const StageWay&) = default;
};

// One stage at one micro-batch size, wherever it stands.
struct StageNeeds {
  BlockPrice memory;
  Bytes received, sent, gradients_out, gradients_in;  // across its border, of one micro-batch
  std::vector<std::int64_t> compute;                  // by compute class, in ns; negative: a cell is missing
  bool writes_buffers = false;
  BlockPin pin;

  std::int64_t most_in_flight(Bytes device) const;  // 0: none fits
};

// What crosses a stage's border, of one micro-batch, tensor by tensor: numbered as in Linearization::graph.
struct StageBorder {
  struct Tensor {
    TensorId tensor;
    Bytes bytes;
    bool gradient = false;  // something flows back
  };
  std::vector<Tensor> received, sent;
  Bytes gradients;  // of its parameters: what replicas add up
};

// Prices at one micro-batch size, for any threads: what one has asked the others need not.
class PlacePrices {
 public:
  // Keeps references to line and table.
  PlacePrices(const Linearization& line, const DeviceTable& table, BatchSize micro_batch, MemoryRule rule);

  BatchSize micro_batch() const { return micro_batch_; }
  std::int64_t micro_batches() const { return micro_batches_; }
  const Linearization& line() const { return line_; }
  const DeviceTable& table() const { return table_; }

  // Remembered by its places and its way. A miss asks the price service.
  const StageNeeds& needs(const PlaceRanges& places, const StageWay& way = {});

  // On single devices; nothing where no kind of device can run them. Not remembered.
  StageBorder border(const PlaceRanges& places);

  // What the devices of a group reduce within the actions of one micro-batch. The stage can run there.
  std::int64_t collectives(const PlaceRanges& places, const StageWay& way,
                           const std::vector<DeviceId>& group);

  // Forward and backward of one micro-batch, without the overhead of actions; negative where a cell is
  // missing. O(ranges).
  std::int64_t compute(std::uint32_t compute_class, const PlaceRanges& places) const;
  // The same of a device alone on its host; and what that becomes where others compute beside it.
  std::int64_t compute_alone(std::uint32_t compute_class, const PlaceRanges& places) const;
  std::int64_t in_company(std::uint32_t compute_class, std::int64_t alone) const {
    return alone + (alone * per_mille_slower_[compute_class] + 500) / 1000;
  }

  // The step time of a stage on a run of devices: see graphpipe.h. `elsewhere`: what its device, which is
  // pinned, does for other stages in a step. None where a cell is missing.
  std::optional<std::int64_t> step_time(const StageNeeds& needs, const RunClass& run, const Hop& hop,
                                        std::int64_t elsewhere = 0) const;
  // Of one micro-batch on the slowest replica.
  std::int64_t micro_batch_time(const StageNeeds& needs, const RunClass& run) const;

 private:
  // These use the scratch: under the mutex.
  StageNeeds ask(const PlaceRanges& places, const StageWay& way);
  std::vector<KindId> able_kinds(const PlaceRanges& places, std::uint32_t degree);
  std::vector<OperatorRun> runs(const PlaceRanges& places) const;
  std::vector<OperatorRun> repeated(const PlaceRanges& places) const;
  std::int64_t replica_time(const StageNeeds& needs, const ComputeClass& compute, std::int64_t work) const;

  const Linearization& line_;
  const DeviceTable& table_;
  BatchSize micro_batch_;
  std::int64_t micro_batches_;
  MemoryRule rule_;
  std::vector<KindId> kinds_;                             // that devices have
  std::vector<std::int64_t> per_mille_slower_;            // by compute class
  std::vector<std::vector<std::int64_t>> work_before_;    // by kind, place
  std::vector<std::vector<std::uint32_t>> lacks_before_;  // likewise: operators without a cell
  std::vector<std::uint32_t> writers_before_;             // by place
  std::mutex mutex_;                                      // guards what follows
  std::unique_ptr<StagePrices::Scratch, void (*)(StagePrices::Scratch*)> scratch_;
  std::map<PlaceRanges, StageNeeds> known_;                            // plain, on single devices
  std::map<std::pair<PlaceRanges, StageWay>, StageNeeds> known_ways_;  // all others
};

}  // namespace espalier::internal
