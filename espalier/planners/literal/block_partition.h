#pragma once

// torchgpipe's balance (Kim et al., "torchgpipe: On-the-fly Pipeline Parallelism for Training Giant Models",
// arXiv 2004.09910; balance_by_time and balance_by_size): a sequence of layers cut into blocks of about one
// cost, by block partitions (Bárány, Grinberg, "Block partitions of sequences", arXiv 1308.2452), traps
// included (docs/peers.md). Beside it the exact answer.
//
// Costs x are first mapped to (x - min) / (max - min). From blocks of equal length on, an element goes from
// block to block towards a smallest one that lies beside the way to a largest one, until the largest is at
// most 1 above the smallest. So equal costs are never balanced, and a block's price leaves the least cost out
// of each of its layers.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "espalier/frontend/published.h"

namespace espalier::literal {

// Blocks by where they end, ascending; the last is the number of costs. Costs are finite. Throws InputError
// unless 1 <= blocks <= costs. O(blocks · costs³) steps at most, each O(costs).
std::vector<std::size_t> block_partition(std::span<const double> costs, std::size_t blocks);

// The same with the least largest sum. O(blocks · costs · log costs).
std::vector<std::size_t> least_largest_block(std::span<const double> costs, std::size_t blocks);

// The largest sum of a block.
double largest_block(std::span<const double> costs, const std::vector<std::size_t>& ends);

struct TorchgpipeBlock {
  std::vector<std::size_t> nodes;  // numbers in the profile, in the order of the sequence
  double time = 0;                 // forward and backward, in the file's unit
  friend bool operator==(const TorchgpipeBlock&, const TorchgpipeBlock&) = default;
};
struct TorchgpipeResult {
  std::vector<TorchgpipeBlock> blocks;
  double largest = 0, exact = 0;  // the slowest block; what the best cut of the same sequence has
  std::string why;                // no answer: the reason; else empty
  bool found() const { return why.empty(); }
};

// balance_by_time of a profile's nodes as a sequence: in topological order (of several the first in the
// file), without `Input…` sources, which a sequential module does not have. torchgpipe takes plain sequences;
// what crosses several blocks costs nothing here either. Throws InputError for a graph with a cycle.
TorchgpipeResult torchgpipe_balance(const PipedreamProfile& profile, std::size_t blocks);

// What is wrong with a result, from the profile alone; empty if nothing is.
std::vector<std::string> check_torchgpipe(const PipedreamProfile& profile, std::size_t blocks,
                                          const TorchgpipeResult& result);

}  // namespace espalier::literal
