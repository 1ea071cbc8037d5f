#pragma once

// A graph seen as a chain: operators in one linear order, cut into blocks that no planner splits further.
// Shared by every planner that looks for contiguous stages.
//
// A cut may stand wherever no colocation group spans it. Blocks between neighbouring cuts without work are
// merged into the one before; above `max_blocks` the cuts that divide the work most evenly are kept, the last
// one within each share.

#include <cstddef>
#include <vector>

#include "espalier/planners/planner.h"

namespace espalier {

class Chain {
 public:
  // `order`: the operators of the chain in an order in which each stands after those it reads from;
  // duplicable ones are ignored. It may be a part of the graph: tensors from or to the rest are not seen.
  // Costs at one micro-batch size.
  Chain(const Problem& problem, std::vector<OperatorId> order, BatchSize micro_batch,
        std::size_t max_blocks = 160);

  std::size_t blocks() const { return begin_.size() - 1; }
  std::vector<OperatorId> operators(std::size_t first, std::size_t last) const;  // of blocks [first, last)

  // Forward and backward of one micro-batch, per-action overheads included.
  Duration work(KindId kind, std::size_t first, std::size_t last) const;
  // Bytes that cross before block `cut`, forward and backward, each tensor once.
  Bytes forward_bytes(std::size_t cut) const { return forward_bytes_[cut]; }
  Bytes backward_bytes(std::size_t cut) const { return backward_bytes_[cut]; }
  // Trainable parameters that the blocks read, each storage once; all parameters and buffers with `resident`.
  Bytes trainable(std::size_t first, std::size_t last) const { return trainable_[index(first, last)]; }
  Bytes resident(std::size_t first, std::size_t last) const { return resident_[index(first, last)]; }
  // Kept for backward per micro-batch, each storage once, less what the blocks receive from earlier ones.
  Bytes saved(std::size_t first, std::size_t last) const { return saved_[index(first, last)]; }
  // Whether an operator of the blocks writes a buffer.
  bool writes_buffers(std::size_t first, std::size_t last) const { return writers_[first] < writers_[last]; }
  // Largest workspace of an operator.
  Bytes workspace(std::size_t first, std::size_t last) const { return workspace_[index(first, last)]; }

  // An estimate of a replica's memory with `in_flight` micro-batches: for pruning; the simulator has the last
  // word.
  Bytes memory(const Optimizer& optimizer, std::size_t first, std::size_t last, std::int64_t in_flight) const;

 private:
  std::size_t index(std::size_t first, std::size_t last) const { return first * (blocks() + 1) + last; }
  void choose_blocks(const Problem& problem, const OperatorCosts& costs, std::size_t max_blocks);
  void measure_cuts(const Problem& problem, BatchSize micro_batch);
  void measure_ranges(const Problem& problem, const OperatorCosts& costs, BatchSize micro_batch);

  std::vector<OperatorId> order_;
  std::vector<std::size_t> begin_;                  // of each block in order_, and the end
  std::vector<std::size_t> writers_;                // operators before each block that write a buffer
  std::vector<std::vector<Duration>> work_prefix_;  // by kind, by block
  std::vector<Duration> overhead_;                  // by kind: of one F and one B
  std::vector<Bytes> forward_bytes_, backward_bytes_;
  std::vector<Bytes> trainable_, resident_, saved_, workspace_;
};

// All operators that are not duplicable (each stage computes those itself), in graph order.
std::vector<OperatorId> chain_order(const Graph& graph);

// The same, depth first from what each output needs: a branch is finished before the next begins, so that
// stages of a chain hold whole branches.
std::vector<OperatorId> branch_by_branch_order(const Graph& graph);

}  // namespace espalier
