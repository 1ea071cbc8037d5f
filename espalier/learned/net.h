#pragma once

// GDP's net (Zhou et al., arXiv 1910.01578, §3; what of it is published and what is recalled: docs/planners/
// learned.md): from a graph's nodes to a row of logits over devices for each, all at once.
//
//   numbers, types ─▶ x0 ─▶ GraphSAGE × n ─▶ h ─▶ segment attention × m ─▶ logits = (h · W) · Eᵀ - r ⊙
//   slowness
//                            max over σ(W h)        gated by h                       E: devices, embedded
//
// symbol  here
//   n     nodes            S  segment: nodes in one window of attention
//   d     width            D  devices
// A node attends to its own segment and to the one before it, through which no gradient flows (Dai et al.,
// ACL'19); there are no positions within a segment. So all segments run as one batch.
//
// By option a second head chooses among levels of schedule priority for each node (GO, arXiv 2010.12438,
// joint tasks). It shares all that is above and attends over what the first head has said:
//
//   x ─▶ x + W · (softmax(logits) · E) ─▶ segment attention ─▶ levels
//
// Gradients of levels reach what is shared, not the probabilities of devices. In the beginning most nodes are
// of the middle level, so that devices mostly run by the order of the graph.
//
// By another option a head scores edges that nodes keep, and components are placed as one (coarsening.h):
//
//   x, edges ─▶ w · ReLU(A x_from + B x_to + C edge)     of itself: w x + what is most probable at first
//
// Includes libtorch; learned/ only.

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "espalier/learned/coarsening.h"
#include "espalier/learned/policy_input.h"
#include "espalier/learned/policy_shape.h"

namespace espalier::placement {

// A policy's input as tensors on a device. Made once for a graph.
struct NetInput {
  NetInput(const PolicyInput& input, const PolicyShape& shape, at::Device device);
  std::int64_t nodes, devices, segments;
  at::Tensor numbers;         // [n, kNodeNumbers + spectral positions]
  at::Tensor types, bag_of;   // [bags]: type and node of each entry
  at::Tensor type_share;      // [bags, 1]
  at::Tensor from, to;        // [edges]: neighbour and node, by node
  at::Tensor begin;           // [n + 1]: where a node's edges begin
  at::Tensor slots;           // [segments · S]: the node in each place, 0 where there is none
  at::Tensor place_of;        // [n]: the place of each node
  at::Tensor mask;            // [segments, 1, 1, 2 S]: 0 where there is a node to attend to, else -inf
  at::Tensor device_numbers;  // [D, kDeviceNumbers]
  at::Tensor slowness;        // [n, D]
  at::Tensor barred;          // [n, D]: -inf where a node may not stand, else 0
  at::Tensor work;            // [n, 1]
  at::Tensor kinds;           // [D, D]: row d averages over the devices that are equal to d
  bool any_barred = false;
  bool by_priority = false;
  std::optional<JoinInput> join;  // of a shape that coarsens
};

// What a net says of a graph, and what a later head reads of it.
struct NetAnswer {
  at::Tensor logits;   // [n, D], of devices
  at::Tensor nodes;    // [n, d], after attention
  at::Tensor context;  // [1 or n, d], of gates
  at::Tensor devices;  // [D, d]
};

class Net {
 public:
  // Weights from a seed.
  Net(const PolicyShape& shape, std::uint64_t seed, at::Device device);

  const PolicyShape& shape() const { return shape_; }
  at::Device device() const { return device_; }

  // With gradients of the weights where at::GradMode says so.
  NetAnswer answer(const NetInput& input) const;
  at::Tensor logits(const NetInput& input) const { return answer(input).logits; }  // [n, D]

  // [n, priorities]: logits of levels. `logits`: of devices, those of the answer with what is added to them.
  at::Tensor levels(const NetInput& input, const NetAnswer& answer, const at::Tensor& logits) const;

  // [n, kJoinEntries]: logits of whom each node joins. Random coarsening: as they are in the beginning.
  at::Tensor joins(const NetInput& input, const NetAnswer& answer) const;

  // [n, d]: what GraphSAGE makes of each node, before any attention.
  at::Tensor embed(const NetInput& input) const;

  // By name, in the order of their making; leaves that require gradients.
  const std::vector<std::pair<std::string, at::Tensor>>& weights() const { return weights_; }

 private:
  at::Tensor make(const std::string& name, std::initializer_list<std::int64_t> sizes, double scale);
  struct Linear {
    at::Tensor weight, bias;
    at::Tensor operator()(const at::Tensor& x) const { return at::linear(x, weight, bias); }
  };
  Linear make_linear(const std::string& name, std::int64_t from, std::int64_t to, double gain = 1);
  struct Norm {
    at::Tensor weight, bias;
    at::Tensor operator()(const at::Tensor& x) const {
      return at::layer_norm(x, weight.sizes(), weight, bias);
    }
  };
  Norm make_norm(const std::string& name, std::int64_t width);
  struct Sage {
    Linear message, update;
  };
  struct Attention {
    Norm before, between;
    Linear qkv, out, widen, narrow;
    Linear gate_qkv, gate_out, gate_widen;  // superposition: of the input of qkv, out and widen
  };
  struct LevelHead {
    Linear placed;
    Attention attention;
    Norm last;
    Linear out;
  };
  struct JoinHead {
    Norm before;
    Linear from, to, edge, out, own;
  };
  Attention make_attention(const std::string& name);
  LevelHead make_level_head();

  at::Tensor attend(const Attention& layer, at::Tensor x, const at::Tensor& context,
                    const NetInput& input) const;

  PolicyShape shape_;
  at::Device device_;
  std::uint64_t seed_;
  std::vector<std::pair<std::string, at::Tensor>> weights_;
  at::Tensor type_table_;
  Linear enter_, device_enter_, device_out_, head_, speed_, feedback_;
  std::vector<Sage> sages_;
  std::vector<Attention> attentions_;
  Norm last_;
  LevelHead level_head_;
  JoinHead join_head_;
  at::Tensor by_priority_;  // [d]: added to each node where devices run by priorities
};

// Logits less the mean of each device's over the work, but for what devices that are alike have in common:
// without it one device takes everything before anything is learnt.
at::Tensor centred(const at::Tensor& logits, const NetInput& input);

// out[i] = max over edges e with to = i of x[from[e]], 0 for a node without an edge; the gradient goes to the
// first largest. `begin`: where a node's edges begin. O(edges · d) and no memory beyond the result on a CPU.
at::Tensor neighbour_max(const at::Tensor& x, const at::Tensor& from, const at::Tensor& to,
                         const at::Tensor& begin);

}  // namespace espalier::placement
