#pragma once

// What a net can learn of graphs before it places any: which nodes belong to a graph (Deep Graph Infomax,
// Veličković et al., ICLR'19; Mars, ICPP'21, trains its encoder so before PPO).
//
//   graph                       ─▶ embed ─▶ h ─┬─ mean, σ ─▶ s      told apart by   σ(hᵀ W s): 1
//   its features in other rows  ─▶ embed ─▶ h̃  ┘ (s of the graph)                   σ(h̃ᵀ W s): 0
//
// The cross entropy of that bounds the mutual information of nodes and their graph from below. It goes down
// by Adam through the layers that make embeddings (types, enter, sage.*; net.h); W is thrown away, and all
// other weights stay as they are. No simulator calls.
//
// Deviations: GraphSAGE with the policy's maximum and types for the paper's GCN; a fixed number of epochs
// instead of stopping once the loss stays.

#include <cstdint>
#include <span>
#include <vector>

#include "espalier/learned/policy.h"
#include "espalier/planners/context.h"

namespace espalier::placement {

struct ContrastOptions {
  std::uint64_t epochs = 200;   // steps of each graph, graphs in turn
  double learning_rate = 1e-3;  // DGI's
  double most_norm = 1;         // of a gradient
  std::uint64_t seed = 1;       // of W and of the rows that features go to
};

// Of an epoch, means over its graphs, before each one's step.
struct ContrastPoint {
  double loss = 0;   // cross entropy; ln 2 where nothing is told apart
  double right = 0;  // part of nodes and of their counterparts that are told right
  friend bool operator==(const ContrastPoint&, const ContrastPoint&) = default;
};

// Changes the policy in place; a table has nothing to learn. Ends early where the context wants it. The same
// bytes for the same seed on one machine.
std::vector<ContrastPoint> contrast(Policy& policy, std::span<const PolicyInput* const> inputs,
                                    const ContrastOptions& options, const Context& context);

}  // namespace espalier::placement
