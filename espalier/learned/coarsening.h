#pragma once

// Learned coarsening: which nodes of a graph are placed as one is drawn, node by node, by the policy that
// places them.
//
//   net ─▶ scores of edges ─▶ each node keeps itself or an edge ─▶ components ─▶ a device for each
//                                0     1 ─▶ 2 ◀─ 3 ◀─ 4           {0} {1, 2, 3, 4}
//
// Source: HSDAG (NeurIPS'24, "A structure-aware framework for learning device placements on computation
// graphs", graph parsing): a net scores edges, each node keeps its best one, components are groups whose
// number nobody sets, and groups are placed. Deviations: a node draws one of itself and its neighbours from a
// softmax, and PPO clips each choice by itself; a group's logits are the mean of its nodes' by their work,
// which for the product with devices' embeddings is the logits of the mean embedding.
//
// Each component has one circle (a node that keeps itself is one), so there are as many groups as nodes that
// keep themselves, and one for each longer circle. In the beginning a node keeps itself with a probability of
// kOfItself, whatever the number of its neighbours, and joins each of them alike. 0.2 was the best of 0.2,
// 0.5 and 0.8 (docs/planners/learned.md).
//
// Where the learner has tables of logits beside the net, entries of choices have one as devices do. A group's
// logits are the mean of net and table together.
//
// Includes libtorch; learned/ only.

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <vector>

#include "espalier/learned/grouping.h"
#include "espalier/learned/policy_input.h"

namespace espalier::placement {

inline constexpr std::size_t kMostNeighbours = 15;  // that a node chooses among
inline constexpr std::size_t kJoinEntries = 1 + kMostNeighbours;
inline constexpr std::size_t kJoinNumbers = 8;
inline constexpr double kOfItself = 0.2;  // its probability in the beginning

// An entry of a node's choices (NodeChoices): 0 keeps the node by itself, i joins its neighbour i.
//
// Whom each node may join: of its neighbours that may stand on the same devices the kMostNeighbours with the
// longest messages, smaller ids first where they are equal.
struct JoinOptions {
  std::vector<std::uint32_t> target;  // nodes × kJoinEntries; the node itself at 0 and behind its neighbours
  std::vector<std::uint32_t> count;   // by node: its neighbours here
  // Of each neighbour, node by node, kJoinNumbers: messages relative to the work of both, to all work, to all
  // messages of either; which way they go; works relative to each other and to an even share; whether the
  // layer is the same.
  std::vector<float> numbers;
};
// O(edges · log edges).
JoinOptions join_options(const PolicyInput& input);

// The components of what nodes chose, numbered by their first node. `target`: as in JoinOptions.
// O(nodes · log nodes).
Grouping groups_of(std::span<const std::uint32_t> target, const NodeChoices& choices);

// The same as tensors on a device. Made once for a graph.
struct JoinInput {
  JoinInput(const PolicyInput& input, at::Device device);
  std::vector<std::uint32_t> target;  // of JoinOptions
  at::Tensor from, to;                // [edges]: a node and the neighbour that it may join
  at::Tensor slots;                   // [n + edges]: places in [n · kJoinEntries], nodes themselves first
  at::Tensor numbers;                 // [edges, kJoinNumbers]
  at::Tensor prior;                   // [n, kJoinEntries]: logits in the beginning, -inf where nobody is
  at::Tensor weight;                  // [n]: how much a node counts in its group, more than 0
};

// Groups of nodes of one or several placements, one after the other.
struct Groups {
  std::vector<Grouping> of_placement;
  std::vector<std::size_t> begin;  // by placement: its first group, and at last the number of all
  at::Tensor of_node;              // [placements · n]: the group
  at::Tensor share;  // [placements · n, 1]: a node's part of its group; those of a group add up to 1
};
Groups make_groups(const JoinInput& input, std::vector<Grouping> groupings);
std::vector<Grouping> groupings_of(const JoinInput& input, std::span<const NodeChoices> choices);

// Of what was judged: each node by itself where a sample has no choices.
Groups groups_of_samples(const JoinInput& input, std::span<const Sample> samples);

// A device for each group, which is that of each of its nodes.
NodeDevices of_groups(const Grouping& grouping, const NodeDevices& devices);

// A device for each node: that of its group, drawn from the group's row of `probability` (groups × devices).
// One placement for each of the groups' placements; the same for the same seed.
std::vector<NodeDevices> draw_groups(std::span<const float> probability, std::size_t devices,
                                     const Groups& groups, std::uint64_t seed);

// [groups, columns] of [n, columns]: the mean over a group's nodes. Devices that are barred (-inf) to its
// nodes stay so. O(placements · n · columns).
at::Tensor pooled(const at::Tensor& logits, const Groups& groups);

// Each row's most probable entry, the first of equals.
NodeChoices best_choices(const at::Tensor& logits);

// [n]: logarithm of the probability that a node keeps itself or joins one with its own label. With gradients.
at::Tensor kept_together(const at::Tensor& logits, const JoinInput& input,
                         std::span<const std::int64_t> label);

}  // namespace espalier::placement
