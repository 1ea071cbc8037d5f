#pragma once

// What decides a structure, and where the rest goes. Internal to make_structure.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "espalier/graph/contraction.h"
#include "espalier/graph/series_parallel.h"

namespace espalier::internal {

// Everything at or below this weight is carried: the largest of the weights for which the operators up to it
// weigh at most `per_mille` of all together; none if all weigh nothing.
std::optional<Weight> carried_up_to(std::span<const Weight> weights, std::uint32_t per_mille);

// The nodes of a contraction that decide, in the order that the whole graph gives them. A light one with many
// before it and many behind stays among them.
struct Core {
  WeightedDag dag;
  std::vector<std::optional<std::uint32_t>> leaf_of;  // by node of the contraction: node of the dag
  std::vector<std::uint32_t> node_of;                 // by node of the dag
};
Core make_core(const Contraction& nodes, std::span<const Weight> weights, std::span<const char> decides,
               std::span<const char> needed);

// The tree with every node of the contraction in a leaf: behind what it reads, before what reads it, at the
// latest of what it reads (at the first of its readers where it reads nothing that decides). Where that is
// between parallel parts, a leaf of its own is made.
struct FullTree {
  struct Node {
    PartKind kind = PartKind::kLeaf;
    std::vector<std::uint32_t> children = {};
    std::vector<std::uint32_t> members = {};  // of a leaf: nodes of the contraction, ascending
  };
  std::vector<Node> nodes;
  std::uint32_t root = 0;
  std::vector<std::uint32_t> number;                 // by node of the SeriesParallelTree
  std::vector<std::vector<std::uint32_t>> position;  // by node of the SeriesParallelTree, by child: its place
};
FullTree with_carried(const SeriesParallelTree& tree, const Contraction& nodes, const Core& core);

}  // namespace espalier::internal
