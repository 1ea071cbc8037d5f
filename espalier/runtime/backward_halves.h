#pragma once

// A backward pass through a piece of autograd graph, in two halves. Includes libtorch; runtime/ only.
//
// The input half (I) computes the gradients of all activations, from the outputs down to what entered the
// piece; the weight half (W) those of the parameters, each operator's from the gradient of its output. In
// autograd's terms: I runs a node for the edges that lead to other operators and keeps the gradient that
// arrives at each node with an edge to a parameter. Then those edges that I has followed are cut, so that W,
// which starts with the gradients kept, follows the others alone: nothing is computed twice unless a kernel
// computes both at once. Nodes that I alone runs give back what they kept.
//
// W adds a parameter's gradients up in the order in which one pass would, so the bits are the same.
//
// An operator that reads no activation with a gradient (the first of a model) runs in W as a whole, and so
// does what stands between a parameter and its operator (a transpose, say, inside a linear layer).

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <vector>

namespace espalier {

struct WeightHalf {  // what is left to do
  torch::autograd::edge_list roots;
  torch::autograd::variable_list gradients;  // as `roots`
};

struct InputHalf {
  std::vector<at::Tensor> entered;  // as the entries: the gradients; undefined where nothing flowed
  WeightHalf rest;
};

// `roots` are edges into the piece with a gradient each, `entries` those at which it ends (some invalid).
// `first_nodes`: the sequence number of each operator's first node, ascending; a node belongs to the last
// operator that does not begin after it. Cuts edges: whoever holds other edges into the piece must not run
// it. O(nodes + edges).
InputHalf run_input_half(torch::autograd::edge_list&& roots, torch::autograd::variable_list&& gradients,
                         const torch::autograd::edge_list& entries,
                         const std::vector<std::uint64_t>& first_nodes);

// Adds to the parameters' .grad and gives the memory of the piece back. No .grad shares memory with a
// gradient that was kept: that one may still be on its way to another stage.
void run_weight_half(WeightHalf&& rest, const std::vector<at::Tensor>& parameters);

}  // namespace espalier
