#pragma once

// One direction of Placeto's message passing on plain numbers:
//
//   h[v] = x[v] + g(Σ over v's edges of f(h[from]))       f, g: two layers of relu(in · weight + bias)
//
// A policy asks for it at each step of an episode, where a small tensor for each level or node would take a
// hundred times as long as the sums. No multiplication is fused with its addition and lanes do not meet, so
// every processor gets the same bits.

#include <cstdint>

namespace espalier::placement {

inline constexpr std::int64_t kPlacetoWidth = 16;  // of x, h and all between

// Nodes so that those that a node hears from come before it.
struct PassEdges {
  std::int64_t nodes = 0;
  const std::int64_t* sequence = nullptr;  // [nodes]
  const std::int64_t* begin = nullptr;     // [nodes + 1]: where a node's edges begin
  const std::int64_t* from = nullptr;      // [edges]
};

// What a node keeps for the way back, each kPlacetoWidth numbers.
enum class PassKept : std::int64_t {
  kSum,       // of the messages that it hears
  kBetween,   // g's first layer
  kUpdate,    // g
  kState,     // h
  kSpeaking,  // f's first layer
  kMessage,   // f
};
inline constexpr std::int64_t kPassKept = 6;

// weight: [4, in, out], of g's layers, then f's; bias: [4, out]; x: [nodes, width]; kept: [nodes, kPassKept,
// width], zeros at first.
void pass_forward(const PassEdges& edges, const float* weight, const float* bias, const float* x,
                  float* kept);

// `turned`: weight, each matrix transposed. `of_state`: the gradient of h, which becomes that of x;
// `of_message`: [nodes, width], zeros at first. Adds to the gradients of weights and biases.
struct PassSlopes {
  float* of_state;
  float* of_message;
  float* of_weight;
  float* of_bias;
};
void pass_backward(const PassEdges& edges, const float* turned, const float* kept, const PassSlopes& slopes);

}  // namespace espalier::placement
