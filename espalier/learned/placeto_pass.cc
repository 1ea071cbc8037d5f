#include "espalier/learned/placeto_pass.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(ESPALIER_SANITIZED)
// As in runtime/adam_kernel.cc: which one is taken is decided before a sanitizer is ready to watch it.
#define ESP_PASS_CLONES __attribute__((target_clones("avx2", "default")))
#define ESP_PASS_WITHIN inline __attribute__((always_inline))
#else
#define ESP_PASS_CLONES
#define ESP_PASS_WITHIN inline
#endif

namespace espalier::placement {
namespace {

constexpr std::size_t kPassLayer = kPlacetoWidth * kPlacetoWidth;

// Numbers side by side. They are handed on by reference: how vectors are passed by value depends on the
// processor.
using PassRow = float __attribute__((vector_size(kPlacetoWidth * sizeof(float))));

ESP_PASS_WITHIN void get_row(const float* from, PassRow& row) {
  std::memcpy(&row, from, sizeof(PassRow));
}

ESP_PASS_WITHIN void put_row(const PassRow& row, float* to) {
  std::memcpy(to, &row, sizeof(PassRow));
}

ESP_PASS_WITHIN void add_row(const PassRow& row, float* to) {
  PassRow sum;
  get_row(to, sum);
  sum += row;
  put_row(sum, to);
}

// Even and odd rows are added apart, so that additions need not wait for each other.
ESP_PASS_WITHIN void times_matrix(const PassRow& in, const float* matrix, PassRow& sum) {
  PassRow odd{}, row;
  for (std::size_t i = 0; i < kPlacetoWidth; i += 2) {
    get_row(matrix + i * kPlacetoWidth, row);
    sum += in[i] * row;
    get_row(matrix + (i + 1) * kPlacetoWidth, row);
    odd += in[i + 1] * row;
  }
  sum += odd;
}

ESP_PASS_WITHIN void relu_layer(std::size_t layer, const float* weight, const float* bias, const PassRow& in,
                                PassRow& out) {
  get_row(bias + layer * kPlacetoWidth, out);
  times_matrix(in, weight + layer * kPassLayer, out);
  const PassRow zero{};
  out = out > zero ? out : zero;
}

// `slope`: of the layer's result `out`, becomes that of its input.
ESP_PASS_WITHIN void relu_layer_back(std::size_t layer, const PassInputs& inputs, const PassSlopes& slopes,
                                     const PassRow& in, const PassRow& out, PassRow& slope) {
  const PassRow zero{};
  const PassRow active = out > zero ? slope : zero;
  add_row(active, slopes.of_bias + layer * kPlacetoWidth);
  float* of_weight = slopes.of_weight + layer * kPassLayer;
  for (std::size_t i = 0; i < kPlacetoWidth; ++i) {
    const PassRow more = in[i] * active;
    add_row(more, of_weight + i * kPlacetoWidth);
  }
  slope = zero;
  times_matrix(active, inputs.turned + layer * kPassLayer, slope);
}

// Where a round's results of g lie; those of f follow.
ESP_PASS_WITHIN std::size_t updates_at(const PassEdges& edges, std::size_t round) {
  return round * edges.nodes * 2 * kPlacetoWidth;
}
ESP_PASS_WITHIN std::size_t messages_at(const PassEdges& edges, std::size_t round) {
  return updates_at(edges, round) + edges.nodes * kPlacetoWidth;
}

ESP_PASS_WITHIN std::span<const std::int32_t> sources(const PassEdges& edges, std::size_t node) {
  return {edges.from.data() + edges.begin[node], edges.from.data() + edges.begin[node + 1]};
}

ESP_PASS_WITHIN void heard(const PassEdges& edges, std::size_t node, const float* messages, PassRow& sum) {
  PassRow row;
  sum = PassRow{};
  for (const std::int32_t from : sources(edges, node)) {
    get_row(messages + static_cast<std::size_t>(from) * kPlacetoWidth, row);
    sum += row;
  }
}

}  // namespace

ESP_PASS_CLONES void pass_forward(const PassEdges& edges, const float* weight, const float* bias,
                                  const float* x, float* kept, float* h) {
  std::copy_n(x, edges.nodes * kPlacetoWidth, h);
  std::fill_n(kept + updates_at(edges, 0), edges.nodes * kPlacetoWidth, 0.0F);
  PassRow in, between, out;
  for (std::size_t round = 1; round <= edges.rounds; ++round) {
    float* messages = kept + messages_at(edges, round - 1);
    for (std::size_t at = 0; at < edges.nodes * kPlacetoWidth; at += kPlacetoWidth) {
      get_row(h + at, in);
      relu_layer(2, weight, bias, in, between);
      relu_layer(3, weight, bias, between, out);
      put_row(out, messages + at);
    }
    float* updates = kept + updates_at(edges, round);
    for (std::size_t node = 0; node < edges.nodes; ++node) {
      heard(edges, node, messages, in);
      relu_layer(0, weight, bias, in, between);
      relu_layer(1, weight, bias, between, out);
      put_row(out, updates + node * kPlacetoWidth);
      get_row(x + node * kPlacetoWidth, in);
      out += in;
      put_row(out, h + node * kPlacetoWidth);
    }
  }
}

// From the last round to the first: `state` is the gradient of that round's h, `message` of the messages that
// it heard, `all` of x, of which every round's h has one.
ESP_PASS_CLONES void pass_backward(const PassEdges& edges, const PassInputs& inputs,
                                   const PassSlopes& slopes) {
  const std::size_t numbers = edges.nodes * kPlacetoWidth;
  float* state = slopes.work;
  float* message = slopes.work + numbers;
  float* all = slopes.work + 2 * numbers;
  std::copy_n(slopes.of_state, numbers, state);
  std::copy_n(slopes.of_state, numbers, all);
  PassRow in, between, out, slope;
  for (std::size_t round = edges.rounds; round > 0; --round) {
    std::fill_n(message, numbers, 0.0F);
    const float* messages = inputs.kept + messages_at(edges, round - 1);
    const float* updates = inputs.kept + updates_at(edges, round);
    for (std::size_t node = 0; node < edges.nodes; ++node) {
      heard(edges, node, messages, in);
      relu_layer(0, inputs.weight, inputs.bias, in, between);
      get_row(updates + node * kPlacetoWidth, out);
      get_row(state + node * kPlacetoWidth, slope);
      relu_layer_back(1, inputs, slopes, between, out, slope);
      relu_layer_back(0, inputs, slopes, in, between, slope);
      for (const std::int32_t from : sources(edges, node))
        add_row(slope, message + static_cast<std::size_t>(from) * kPlacetoWidth);
    }
    const float* before = inputs.kept + updates_at(edges, round - 1);
    for (std::size_t at = 0; at < numbers; at += kPlacetoWidth) {
      get_row(inputs.x + at, in);
      get_row(before + at, out);
      in += out;
      relu_layer(2, inputs.weight, inputs.bias, in, between);
      get_row(messages + at, out);
      get_row(message + at, slope);
      relu_layer_back(3, inputs, slopes, between, out, slope);
      relu_layer_back(2, inputs, slopes, in, between, slope);
      put_row(slope, state + at);
      add_row(slope, all + at);
    }
  }
  std::copy_n(all, numbers, slopes.of_state);
}

}  // namespace espalier::placement
