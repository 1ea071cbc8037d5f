#pragma once

// A graph seen as a chain: operators in one linear order, cut into blocks that no planner splits further.
// Shared by every planner that looks for contiguous stages. What a stage costs is asked of the price service
// (sim/stage_price.h), which answers for runs of operators; so a Linearization renumbers the graph, and any
// blocks of a chain are one run, or a few where the chain is a part of the graph.
//
//     linearization   d d 0 1 2 3 4 5 6 7 8     duplicable operators first: no stage of a chain holds them
//     a chain             0 1 2     5 6 7 8     its operators, by their places in the linearization
//     its blocks          [0][1 2]  [5][6 7 8]

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "espalier/planners/operator_set.h"
#include "espalier/planners/planner.h"
#include "espalier/sim/stage_price.h"

namespace espalier {

// Operators of a graph in a legal order, with their prices and pins.
class Linearization {
 public:
  // `order`: all operators, each behind those it waits for; duplicable ones are left out. Keeps a reference
  // to the problem. O(parts · log parts), less where the order is the graph's own.
  Linearization(const Problem& problem, std::vector<OperatorId> order);

  const Problem& problem() const { return problem_; }
  std::size_t size() const { return order_.size(); }
  OperatorId operator[](std::size_t place) const { return order_[place]; }
  const std::vector<OperatorId>& order() const { return order_; }
  std::optional<DeviceId> pin(std::size_t place) const { return pins_[order_[place].index()]; }

  // Of operators first … last (places).
  OperatorRun run(std::size_t first, std::size_t last) const {
    return {narrow(duplicables_ + first), narrow(duplicables_ + last)};
  }
  const StagePrices& prices() const { return prices_ ? *prices_ : problem_.oracle->prices(); }
  const Graph& graph() const { return renumbered_ ? *renumbered_ : problem_.graph; }  // that prices speak of

 private:
  const Problem& problem_;
  std::vector<OperatorId> order_;
  std::size_t duplicables_ = 0;
  std::optional<Graph> renumbered_;
  std::optional<StagePrices> prices_;          // none: the problem's
  std::vector<std::optional<DeviceId>> pins_;  // by operator of the problem's graph
};

// Whether other devices of its host compute beside a device.
enum class Crowd : std::uint8_t { kAlone, kCrowded };

// What blocks of a chain cost as a stage.
struct BlockPrice {
  Bytes trainable;      // parameters, each storage once
  Bytes saved;          // per micro-batch, without what is received or sent on
  Bytes base;           // memory beside what grows with the micro-batches in flight
  Bytes per_in_flight;  // of which each in flight needs this much
  Bytes memory(std::int64_t in_flight) const { return base + in_flight * per_in_flight; }
  friend bool operator==(const BlockPrice&, const BlockPrice&) = default;
};

// What the price service's answer means for a stage, with 1F1B: what the simulator will find at least. Of a
// stage of the line's operators at that micro-batch; uses the scratch once more for each tensor that crosses.
BlockPrice block_price(const Linearization& line, BatchSize micro_batch, const StagePrice& price,
                       StagePrices::Scratch& scratch);

// What a block asks of its device.
struct BlockPin {
  std::optional<DeviceId> device;
  bool torn = false;  // operators of two devices: no plan in this chain
  friend bool operator==(const BlockPin&, const BlockPin&) = default;
};

class Chain {
 public:
  struct Options {
    std::size_t max_blocks = 160;
    std::vector<std::uint32_t> members = {};  // places, ascending; empty: all. The rest is not seen.
  };

  // A cut may stand wherever no colocation group spans it, and must where pins change. Blocks between
  // neighbouring cuts without work are merged into the one before; above `max_blocks` the cuts that divide
  // the work most evenly are kept, the last one within each share. Work is summed over the kinds of device.
  Chain(const Linearization& line, BatchSize micro_batch, Options options);
  Chain(const Linearization& line, BatchSize micro_batch) : Chain(line, micro_batch, Options()) {}

  const Linearization& line() const { return line_; }
  BatchSize micro_batch() const { return micro_batch_; }
  std::size_t blocks() const { return begin_.size() - 1; }
  std::vector<OperatorId> operators(std::size_t first, std::size_t last) const;  // of blocks [first, last)
  // The same as a set, remembered: not for two threads at a time.
  const OperatorSet& set(std::size_t first, std::size_t last) const;

  // Forward and backward of one micro-batch of blocks [0, last), without the overhead of actions.
  Duration work_before(KindId kind, Crowd crowd, std::size_t last) const {
    return work_[2 * kind.index() + static_cast<std::size_t>(crowd)][last];
  }
  Duration work(KindId kind, Crowd crowd, std::size_t first, std::size_t last) const {
    return work_before(kind, crowd, last) - work_before(kind, crowd, first);
  }
  std::vector<Duration> times_by_kind() const;  // of all blocks, by KindId
  // Its forward part, on a device that computes alone.
  Duration forward(KindId kind, std::size_t first, std::size_t last) const {
    return forward_[kind.index()][last] - forward_[kind.index()][first];
  }
  // False where the cost table lacks a cell.
  bool can_run(KindId kind, std::size_t first, std::size_t last) const {
    return forbidden_[kind.index()][first] == forbidden_[kind.index()][last];
  }
  // Bytes that cross before block `cut`, forward and backward, each tensor once; of a chain that is a part of
  // the graph, those that it reads itself.
  Bytes forward_bytes(std::size_t cut) const { return forward_bytes_[cut]; }
  Bytes backward_bytes(std::size_t cut) const { return backward_bytes_[cut]; }
  // Whether an operator of the blocks writes a buffer.
  bool writes_buffers(std::size_t first, std::size_t last) const { return writers_[first] < writers_[last]; }
  const BlockPin& pin(std::size_t block) const { return pins_[block]; }

  // Asked once for each range and remembered; any threads may ask. Memory is what the simulator will find at
  // least, with 1F1B: states, slots, what micro-batches in flight keep, gradients on their way, workspace.
  const BlockPrice& price(std::size_t first, std::size_t last) const;

  // Whether the other, of the same line, has the same blocks at the same prices, and neither has pins: what
  // is found for one of them holds for the other. It compares each block and all of them together. O(blocks).
  bool is_like(const Chain& other) const;

 private:
  struct Cells;
  void choose_blocks(std::size_t max_blocks);
  void measure_work();
  void measure_cuts();
  std::vector<OperatorRun> runs(std::size_t first, std::size_t last) const;
  std::vector<KindId> able_kinds(std::size_t first, std::size_t last) const;
  BlockPrice new_price(std::size_t first, std::size_t last) const;  // under the mutex

  const Linearization& line_;
  BatchSize micro_batch_;
  std::vector<std::uint32_t> members_;
  std::vector<std::uint32_t> run_end_;               // by member: the first behind its run
  std::vector<std::size_t> begin_;                   // of each block in members_, and the end
  std::vector<BlockPin> pins_;                       // by block
  std::vector<std::size_t> writers_;                 // operators before each block that write a buffer
  std::vector<KindId> kinds_;                        // that devices have
  std::vector<std::vector<Duration>> work_;          // by kind and crowd, by cut
  std::vector<std::vector<Duration>> forward_;       // by kind, by cut
  std::vector<std::vector<std::size_t>> forbidden_;  // by kind, by cut: blocks before it that cannot run
  std::vector<Bytes> forward_bytes_, backward_bytes_;
  std::unique_ptr<StagePrices::Scratch, void (*)(StagePrices::Scratch*)> scratch_;
  mutable std::mutex mutex_;                         // guards the scratch and new prices
  mutable std::vector<BlockPrice> prices_;           // by first, last
  mutable std::vector<std::atomic<bool>> is_known_;  // likewise
  mutable std::map<std::pair<std::size_t, std::size_t>, OperatorSet> sets_;  // by first, last
};

// All operators that are not duplicable (each stage computes those itself), in graph order.
std::vector<OperatorId> chain_order(const Graph& graph);

// The same, depth first from what each output needs: a branch is finished before the next begins, so that
// stages of a chain hold whole branches.
std::vector<OperatorId> branch_by_branch_order(const Graph& graph);

// The same, by the number of operators before them on their longest path, then graph order: a stage of a
// chain holds layers of all branches.
std::vector<OperatorId> layer_by_layer_order(const Graph& graph);

// The same, finishing what is pinned to one device, as far as it is ready, before what is pinned to another:
// stages of a chain need fewer changes of device.
std::vector<OperatorId> pin_by_pin_order(const Graph& graph, const Pins& pins);

}  // namespace espalier
