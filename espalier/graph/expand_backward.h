#pragma once

// A training graph from a forward graph: what autograd would do in a step, written out as operators. For
// placements, which give every operator a device, and for the graphs of the placement literature, which hold
// forward, backward and updates (GDP, arXiv 1910.01578). Pipelines plan the forward graph.
//
//   x ─ f ─ y ─ g ─ loss         y.grad ← g.backward ← loss.grad = 1
//       w                        x.grad, w.grad ← f.backward ← y.grad        f.update ← w.grad, w
//
// The forward half comes first and keeps its numbers, names and classes; no tensor of it requires a gradient
// any more, since nothing here is left to autograd (graph.h). Behind it, in this order:
// - a constant for the gradient of each seed: the loss, or where the graph has none every output that
// requires
//   a gradient;
// - a backward operator "F.backward" (role kBackward, F's class) for each forward operator F with an output
//   that requires a gradient and leads to a seed through such outputs; later operators first. Others have
//   none: masks, labels, what is behind a detach, side outputs, frozen parts below the first trained one.
//   It reads the gradients of F's outputs that have one, in their order, then what F keeps for it (F's inputs
//   and then its outputs by position, each tensor once). It gives one gradient for each of F's inputs that
//   require one, in argument order, each tensor once, a parameter once whatever tensors it has. A backward
//   without outputs exists, too: where F's output requires a gradient though none of its inputs does. A
//   gradient has the type and sizes of its tensor; behind a view of all elements it shares the memory of the
//   gradient it came from;
// - a sum (role kBackward, "gradient_sum") wherever a second and later gradient of a tensor comes in, of two
//   each: x.grad.1, x.grad.2, …, the last is x.grad. As in autograd, no more than two of them wait;
// - an update "P.update" (role kUpdate, "update") for each trainable parameter P that has a gradient, by
//   number: reads P's first tensor and its gradient, writes the former, gives nothing. A tied parameter has
//   one gradient and one update. A parameter without a gradient has none, as in PyTorch.
// Tensor::gradient_of says of every gradient, partial sum and constant of these whose it is. The outputs are
// the forward graph's, then the gradients of inputs.
//
// What an operator keeps beside tensors (a dropout's mask) stays with the forward operator's cost.

#include <cstdint>
#include <string>
#include <vector>

#include "espalier/graph/graph.h"

namespace espalier {

// What of its own inputs and outputs an operator keeps for its backward, by position, ascending.
struct KeptTensors {
  std::vector<std::uint32_t> inputs = {};
  std::vector<std::uint32_t> outputs = {};
  friend bool operator==(const KeptTensors&, const KeptTensors&) = default;
};

struct ExpandOptions {
  // By operator (cost/kept_tensors.h makes them from costs); empty: each keeps its floating-point inputs and
  // its outputs.
  std::vector<KeptTensors> kept = {};
  enum class Colocation : std::uint8_t {
    kWithForward,  // a backward operator stands with its forward one, a sum with the producer of the tensor,
                   // an update, and its sums, with the first operator whose backward gives a part
    kFree,         // but for what mutations ask for
  } colocation = Colocation::kWithForward;
};

// Throws InputError where the graph holds backward or update operators already, has nothing that requires a
// gradient, or `kept` names what an operator lacks. O((parts + edges) · log).
Graph expand_backward(const Graph& forward, const ExpandOptions& options = {});

// Whether `training` is an expansion of `forward`: one line for each rule above that is broken. The gradients
// are checked by value: every forward operator is taken for a random linear map modulo a prime, and what each
// update reads is compared with the derivative. Shares no code with expand_backward. O(parts + edges).
std::vector<std::string> check_expansion(const Graph& forward, const Graph& training);

}  // namespace espalier
