#pragma once

// Placeto's net (Addanki et al., NeurIPS'19, §3.2): from the state of an episode to the devices of its
// current node.
//
//   features ─▶ embedding of each node ─▶ current node, means over those before, after and beside it
//                                                        ─▶ relu ─▶ logits over devices
//
// Embeddings:
//   message-passing  Placeto's. x: a node's features, transformed;  h = x + g(Σ f(h of those before it)) from
//                    sources to sinks, the same the other way with weights of its own, both side by side
//   graphsage        two layers of means over neighbours (Hamilton et al., NeurIPS'17)
//   p-gnn            two layers that hear from the nearest node of each anchor set, by its distance, and in
//                    the end a number for each set (You et al., ICML'19)
// The last two are what "Graph Representation Matters in Device Placement" (DIDL'20) puts in the place of the
// first. f and g have two layers with relu.
//
// symbol  here
//   n     nodes       D  devices       B  states       E  width of an embedding
//
// Deviations: an embedding is 16 wide in each direction; means stand for sums over those before, after and
// beside, so that large graphs do not saturate the last layers.
//
// Includes libtorch; learned/ only.

#include <ATen/ATen.h>

#include <cstdint>
#include <span>

#include "espalier/learned/placeto.h"
#include "espalier/learned/placeto_graph.h"
#include "espalier/learned/placeto_pass.h"
#include "espalier/learned/weights.h"

namespace espalier::placement {

// One direction of a graph: nodes so that those that a node hears from come before it.
struct DirectedEdges {
  at::Tensor sequence;  // [n]
  at::Tensor begin;     // [n + 1]: where a node's edges begin
  at::Tensor from;      // [edges]
};
enum class PassDirection : std::uint8_t { kForward, kBackward };
DirectedEdges directed_edges(const PlacetoGraph& graph, PassDirection direction);

// placeto_pass.h for B states, with gradients of x, weights and biases. x: [B, n, kPlacetoWidth].
at::Tensor directed_pass(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& biases,
                         const DirectedEdges& edges);

class PlacetoNet {
 public:
  // Weights and anchors from a seed.
  PlacetoNet(const PlacetoGraph& graph, PlacetoEmbedding embedding, std::uint64_t seed);

  // [B, D], -inf where the current node may not stand. `features`: [B, n, graph.features()];
  // `current`: [B], the nodes to place. With gradients where at::GradMode says so.
  at::Tensor logits(const at::Tensor& features, const at::Tensor& current) const;

  // [B, n, E].
  at::Tensor embed(const at::Tensor& features) const;

  const NamedTensors& weights() const { return weights_; }

 private:
  at::Tensor make(const std::string& name, std::initializer_list<std::int64_t> sizes, double scale);
  struct Dense {
    at::Tensor weight, bias;
    at::Tensor operator()(const at::Tensor& x) const { return at::linear(x, weight, bias); }
  };
  Dense make_dense(const std::string& name, std::int64_t from, std::int64_t to);
  struct Pass {
    Dense own;
    at::Tensor weights, biases;
    DirectedEdges edges;
  };
  struct Heard {  // of graphsage: what neighbours say, and both together; of p-gnn: anchors' part, own part
    Dense other, own;
  };

  void make_passes(const PlacetoGraph& graph);
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
