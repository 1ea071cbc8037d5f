#include "espalier/learned/placeto_pass.h"

#include <algorithm>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
// As in runtime/adam_kernel.cc: which one is taken is decided before a sanitizer is ready to watch it.
#define ESP_CLONES __attribute__((target_clones("avx2", "default")))
#define ESP_WITHIN inline __attribute__((always_inline))
#else
#define ESP_CLONES
#define ESP_WITHIN inline
#endif

namespace espalier::placement {
namespace {

constexpr std::int64_t kWide = kPlacetoWidth, kLayer = kWide * kWide;

ESP_WITHIN std::int64_t place_of(std::int64_t node, PassKept what) {
  return (node * kPassKept + static_cast<std::int64_t>(what)) * kWide;
}

ESP_WITHIN void add_row(float* sum, const float* more) {
  for (std::int64_t i = 0; i < kWide; ++i) sum[i] += more[i];
}

ESP_WITHIN void relu_layer(const float* weight, const float* bias, const float* in, float* out) {
  float sum[kWide];
  for (std::int64_t j = 0; j < kWide; ++j) sum[j] = bias[j];
  for (std::int64_t i = 0; i < kWide; ++i) {
    for (std::int64_t j = 0; j < kWide; ++j) sum[j] += in[i] * weight[i * kWide + j];
  }
  for (std::int64_t j = 0; j < kWide; ++j) out[j] = sum[j] > 0 ? sum[j] : 0;
}

// `slope` is that of the layer's result; that of its input is added to `in_slope`.
struct LayerWays {
  const float* turned;
  float* of_weight;
  float* of_bias;
};
ESP_WITHIN void relu_layer_back(const LayerWays& layer, const float* in, const float* out, const float* slope,
                                float* in_slope) {
  float of_sum[kWide], more[kWide] = {};
  for (std::int64_t j = 0; j < kWide; ++j) of_sum[j] = out[j] > 0 ? slope[j] : 0;
  add_row(layer.of_bias, of_sum);
  for (std::int64_t i = 0; i < kWide; ++i) {
    for (std::int64_t j = 0; j < kWide; ++j) layer.of_weight[i * kWide + j] += in[i] * of_sum[j];
  }
  for (std::int64_t j = 0; j < kWide; ++j) {
    for (std::int64_t i = 0; i < kWide; ++i) more[i] += layer.turned[j * kWide + i] * of_sum[j];
  }
  add_row(in_slope, more);
}

}  // namespace

ESP_CLONES void pass_forward(const PassEdges& edges, const float* weight, const float* bias, const float* x,
                             float* kept) {
  for (std::int64_t i = 0; i < edges.nodes; ++i) {
    const std::int64_t node = edges.sequence[i];
    float* sum = kept + place_of(node, PassKept::kSum);
    float* between = kept + place_of(node, PassKept::kBetween);
    float* update = kept + place_of(node, PassKept::kUpdate);
    float* state = kept + place_of(node, PassKept::kState);
    float* speaking = kept + place_of(node, PassKept::kSpeaking);
    for (std::int64_t e = edges.begin[node]; e < edges.begin[node + 1]; ++e)
      add_row(sum, kept + place_of(edges.from[e], PassKept::kMessage));
    relu_layer(weight, bias, sum, between);
    relu_layer(weight + kLayer, bias + kWide, between, update);
    for (std::int64_t j = 0; j < kWide; ++j) state[j] = x[node * kWide + j] + update[j];
    relu_layer(weight + 2 * kLayer, bias + 2 * kWide, state, speaking);
    relu_layer(weight + 3 * kLayer, bias + 3 * kWide, speaking, kept + place_of(node, PassKept::kMessage));
  }
}

ESP_CLONES void pass_backward(const PassEdges& edges, const float* turned, const float* kept,
                              const PassSlopes& slopes) {
  LayerWays layers[4];
  for (std::int64_t l = 0; l < 4; ++l)
    layers[l] = {turned + l * kLayer, slopes.of_weight + l * kLayer, slopes.of_bias + l * kWide};
  for (std::int64_t i = edges.nodes; i-- > 0;) {
    const std::int64_t node = edges.sequence[i];
    const float* sum = kept + place_of(node, PassKept::kSum);
    const float* between = kept + place_of(node, PassKept::kBetween);
    const float* update = kept + place_of(node, PassKept::kUpdate);
    const float* state = kept + place_of(node, PassKept::kState);
    const float* speaking = kept + place_of(node, PassKept::kSpeaking);
    const float* message = kept + place_of(node, PassKept::kMessage);
    float* of_state = slopes.of_state + node * kWide;
    float of_speaking[kWide] = {}, of_between[kWide] = {}, of_sum[kWide] = {};
    relu_layer_back(layers[3], speaking, message, slopes.of_message + node * kWide, of_speaking);
    relu_layer_back(layers[2], state, speaking, of_speaking, of_state);
    relu_layer_back(layers[1], between, update, of_state, of_between);
    relu_layer_back(layers[0], sum, between, of_between, of_sum);
    for (std::int64_t e = edges.begin[node]; e < edges.begin[node + 1]; ++e)
      add_row(slopes.of_message + edges.from[e] * kWide, of_sum);
  }
}

}  // namespace espalier::placement
