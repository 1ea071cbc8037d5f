#pragma once

// One direction of Placeto's message passing (Addanki et al., NeurIPS'19, §3.2) on plain numbers:
//
//   h⁰[v] = x[v]        hʳ[v] = x[v] + g(Σ over v's edges of f(hʳ⁻¹[from]))        r = 1 … rounds
//
// f and g have two layers of relu(in · weight + bias). A policy asks for it at each step of an episode, where
// a small tensor for each level or node would take a hundred times as long as the sums. No multiplication is
// fused with its addition and lanes do not meet, so every processor gets the same bits.
//
// Kept for the way back are g's and f's results alone; what lies between is worked out again, half a pass.

#include <cstddef>
#include <cstdint>
#include <span>

namespace espalier::placement {

inline constexpr std::size_t kPlacetoWidth = 8;  // of x, h and all between

// From whom each node hears.
struct PassEdges {
  std::size_t nodes = 0, rounds = 0;
  std::span<const std::int32_t> begin = {};  // nodes + 1: where a node's edges begin
  std::span<const std::int32_t> from = {};
};

// By layer: g's first, g's second, f's first, f's second.
inline constexpr std::size_t kPassWeights = 4 * kPlacetoWidth * kPlacetoWidth;  // [layer][in][out]
inline constexpr std::size_t kPassBiases = 4 * kPlacetoWidth;                   // [layer][out]

// Numbers that one state keeps: g's results and f's, of each round from 0 on.
constexpr std::size_t pass_kept(const PassEdges& edges) {
  return (edges.rounds + 1) * edges.nodes * 2 * kPlacetoWidth;
}

// x, h: [nodes, width]; kept: pass_kept. O(rounds · (nodes · width² + edges · width)).
void pass_forward(const PassEdges& edges, const float* weight, const float* bias, const float* x, float* kept,
                  float* h);

// What backward works with: `turned` is weight with each matrix transposed.
struct PassInputs {
  const float* weight;
  const float* turned;
  const float* bias;
  const float* x;
  const float* kept;
};
// `of_state`: the gradient of h, which becomes that of x; `work`: [3, nodes, width]. Adds to the gradients of
// weights and biases.
struct PassSlopes {
  float* of_state;
  float* of_weight;
  float* of_bias;
  float* work;
};
void pass_backward(const PassEdges& edges, const PassInputs& inputs, const PassSlopes& slopes);

}  // namespace espalier::placement
