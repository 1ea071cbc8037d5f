#pragma once

// The net of a policy that moves one node at a time (relocation.h), after GiPH (MLSys'23): messages between
// options, a score for each, a softmax over all moves.
//
//   numbers ─▶ h ─▶ rounds: h + relu(W [h, heard of inputs, heard of outputs]) ─▶ scores of options
//
//   heard    mean over edges of relu(A · h of where the neighbour stands + B · numbers of the edge)
//   score    w · relu(V [h, h of where the node stands, mean of all those])
//
// Many placements of one graph are one batch: [B, n, D, …]. Includes libtorch; learned/ only.

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "espalier/learned/relocation.h"
#include "espalier/learned/relocation_graph.h"
#include "espalier/learned/weights.h"

namespace espalier::placement {

// The edges of a graph, made once.
struct RelocationEdges {
  explicit RelocationEdges(const RelocationGraph& graph);
  std::int64_t nodes, devices, edges;
  at::Tensor from, to;             // [edges]
  at::Tensor in_share, out_share;  // [n, 1, 1]: one over the edges that lead to a node, and from it
};

// Views of one graph.
struct RelocationBatch {
  explicit RelocationBatch(const RelocationGraph& graph, std::span<const RelocationView* const> views);
  at::Tensor numbers;        // [B, n, D, kOptionNumbers]
  at::Tensor stands;         // [B, n]
  at::Tensor barred;         // [B, n · D]: -inf where there is no move, else 0
  at::Tensor arrive, leave;  // [B, edges, D, kEdgeNumbers]
};

class RelocationNet {
 public:
  RelocationNet(const RelocationShape& shape, std::uint64_t seed);

  const RelocationShape& shape() const { return shape_; }
  const NamedTensors& weights() const { return weights_; }

  // [B, n · D]: log probabilities of moves; -inf where there is none. A view without any move has no row that
  // means something.
  at::Tensor log_probabilities(const RelocationEdges& edges, const RelocationBatch& batch) const;

 private:
  struct Linear {
    at::Tensor weight, bias;
    at::Tensor operator()(const at::Tensor& x) const { return at::linear(x, weight, bias); }
  };
  struct Hearing {
    Linear from_option, from_edge;
  };
  struct Round {
    Hearing inputs, outputs;
    Linear update;
  };
  Linear make_linear(const std::string& name, std::int64_t from, std::int64_t to, double gain = 1);
  Hearing make_hearing(const std::string& name);

  RelocationShape shape_;
  std::uint64_t seed_;
  NamedTensors weights_;
  Linear enter_, weigh_, score_;
  std::vector<Round> rounds_;
};

}  // namespace espalier::placement
