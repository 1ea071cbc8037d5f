#pragma once

// The series-parallel form of a weighted order: which nodes run one after the other, which side by side.
//
// Only the order counts (who must wait for whom), not single edges: an edge beside a longer path says nothing
// new, so residual connections and other identity skips vanish.
//
//        b1 ─ b2            series(a, parallel(series(b1, b2), c), d, e)
//   a <           > d ─ e
//        ─── c ──
//
// Not every order has such a form; the smallest that has none is the N: a before c, b before c and d. There
// some nodes are made to wait for others that they do not need. Such waits never take an order away, so the
// tree is always safe to follow; where they stand, and how much longer its heaviest path becomes, is part of
// the result.
//
// A staircase has a form, but a poor one: each step of a chain has a branch of its own that could start at
// the very beginning (the projections of the memory that every decoder layer reads), so that the chain's
// first step is nested as deep as the chain is long. Where it costs nothing, the branches stand beside their
// own steps.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "espalier/base/units.h"

namespace espalier {

// Work in any unit that adds up: time, operations, bytes.
using Weight = Quantity<struct WeightUnit>;

// Nodes are numbered in a legal order; lists ascend, each neighbour once. Weights are not negative, and their
// sum is below 2^62.
struct WeightedDag {
  std::vector<std::vector<std::uint32_t>> predecessors, successors;
  std::vector<Weight> weights;
};

enum class PartKind : std::uint8_t { kLeaf, kSeries, kParallel };

struct SeriesParallelTree {
  struct Node {
    PartKind kind = PartKind::kLeaf;
    std::vector<std::uint32_t> children = {};  // at least two unless it is a leaf, none of its own kind
    std::uint32_t leaf = 0;                    // the node of the dag
    friend bool operator==(const Node&, const Node&) = default;
  };
  // Between children position - 1 and position of a series: those of the last nodes of the one that some
  // first node of the other does not wait for by itself, these first nodes, and how many such pairs there
  // are.
  struct Wait {
    std::uint32_t series = 0;
    std::uint32_t position = 0;
    std::vector<std::uint32_t> from, to;
    std::uint64_t pairs = 0;
    friend bool operator==(const Wait&, const Wait&) = default;
  };
  std::vector<Node> nodes;  // children before parents
  std::uint32_t root = 0;   // the last node; there is none if the dag is empty
  std::vector<Wait> waits;  // by series, then position
  Weight length;            // heaviest path through the tree
  Weight longest_path;      // and through the dag
  friend bool operator==(const SeriesParallelTree&, const SeriesParallelTree&) = default;
};

enum class Staircases : std::uint8_t { kKept, kFlattened };

struct SeriesParallelOptions {
  Staircases staircases = Staircases::kFlattened;
  // Parts that are nested deeper are cut into antichains, one behind the other. It bounds the work.
  std::size_t max_depth = 64;
};

// Children of a parallel node stand by first node, those of a series in their order. With kKept an order that
// has a series-parallel form (of at most max_depth levels) gets it, without any wait. O((n + e) · log n) for
// each level of nesting.
SeriesParallelTree series_parallel(const WeightedDag& dag, const SeriesParallelOptions& options = {});

}  // namespace espalier
