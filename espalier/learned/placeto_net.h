#pragma once

// Placeto's net (Addanki et al., NeurIPS'19, §3.2): from the state of an episode to the devices of its
// current node.
//
//   features ─▶ embedding of each node ─▶ current node, means over those before, after and beside it
//                                                        ─▶ relu ─▶ logits over devices
//
// Embeddings:
//   message-passing  Placeto's: rounds of messages along the edges and, with other weights, against them
//                    (placeto_pass.h), both side by side
//   graphsage        two layers of means over neighbours (Hamilton et al., NeurIPS'17)
//   p-gnn            two layers that hear from the nearest node of each anchor set, by its distance, and in
//                    the end a number for each set (You et al., ICML'19)
// The last two are what "Graph Representation Matters in Device Placement" (DIDL'20) puts in the place of the
// first.
//
// symbol  here
//   n     nodes       D  devices       B  states       E  width of an embedding       F  features of a node
//
// Deviations: an embedding is 8 wide in each direction, 16 without directions; means stand for sums over
// those before, after and beside, so that large graphs do not saturate the last layers; the weights of the
// last layer begin at 0, so that the first policy is uniform.
//
// Includes libtorch; learned/ only.

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "espalier/learned/placeto.h"
#include "espalier/learned/placeto_graph.h"
#include "espalier/learned/placeto_pass.h"
#include "espalier/learned/weights.h"

namespace espalier::placement {

// From whom nodes hear in one direction of a graph.
struct DirectedEdges {
  at::Tensor begin;  // [n + 1], 32 bits: where a node's edges begin
  at::Tensor from;   // [edges], 32 bits
  std::int64_t rounds = 0;
};
enum class PassDirection : std::uint8_t { kForward, kBackward };
DirectedEdges directed_edges(const PlacetoGraph& graph, PassDirection direction, std::size_t rounds);

// placeto_pass.h for B states, with gradients of x, weights and biases. x: [B, n, kPlacetoWidth]; weights:
// [4, kPlacetoWidth, kPlacetoWidth]; biases: [4, kPlacetoWidth].
at::Tensor directed_pass(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& biases,
                         const DirectedEdges& edges);

class PlacetoNet {
 public:
  // Weights and anchors from a seed; `rounds` is for message passing.
  PlacetoNet(const PlacetoGraph& graph, PlacetoEmbedding embedding, std::size_t rounds, std::uint64_t seed);

  // [B, D], -inf where the current node may not stand. `features`: [B, n, F]; `current`: [B], the nodes to
  // place. With gradients where at::GradMode says so.
  at::Tensor logits(const at::Tensor& features, const at::Tensor& current) const;

  // [B, n, E].
  at::Tensor embed(const at::Tensor& features) const;

  const NamedTensors& weights() const { return weights_; }

 private:
  struct Dense {
    at::Tensor weight, bias;
    at::Tensor operator()(const at::Tensor& x) const { return at::linear(x, weight, bias); }
  };
  struct Pass {
    Dense own;
    at::Tensor weights, biases;
    DirectedEdges edges;
  };
  struct Heard {  // of graphsage: what neighbours say, and both together; of p-gnn: anchors' part, own part
    Dense other, own;
  };

  at::Tensor make(const std::string& name, std::initializer_list<std::int64_t> sizes, double scale);
  Dense make_dense(const std::string& name, std::int64_t from, std::int64_t to);
  void make_passes(const PlacetoGraph& graph, std::size_t rounds);
  void make_layers(const PlacetoGraph& graph);
  at::Tensor embed_by_neighbours(const at::Tensor& features) const;
  at::Tensor embed_by_anchors(const at::Tensor& features) const;

  PlacetoEmbedding embedding_;
  std::uint64_t seed_;
  std::int64_t nodes_, width_ = 0;  // width_: E
  NamedTensors weights_;
  std::vector<Pass> passes_;
  Dense enter_, position_, hidden_, devices_;
  std::vector<Heard> layers_;
  at::Tensor pooling_, barred_;              // [n, 3, n], [n, D]
  at::Tensor neighbours_;                    // [n, n]
  at::Tensor anchor_nearest_, anchor_near_;  // [n · sets], [n · sets, 1]
  std::int64_t anchor_sets_ = 0;
};

}  // namespace espalier::placement
