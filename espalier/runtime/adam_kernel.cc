// Kingma, Ba, ICLR'15; AdamW: Loshchilov, Hutter, ICLR'19. torch.optim's operations in its order:
//
//   g += decay·p                   p *= shrink (AdamW)
//   m += new_mean·(g - m)          lerp_, for a weight below one half
//   v  = v·keep_square + (new_square·g)·g          mul_, addcmul_
//   p += (minus_step_size·m) / (√v / correction + epsilon)     sqrt, div, add_, addcdiv_
//
// Operation by operation that is some twenty passes over memory, and with the norm an update of large layers
// takes a tenth of a step. Here blocks of a parameter go through all of it while they are in the cache. There
// is no fused multiply-add, so every processor gets the same bits; torch's own, which has some and takes the
// root from its math library, differs in the last ones.
//
// Compiled without errno for √, which else stands in the way of vector instructions (CMakeLists.txt).

#include "espalier/runtime/adam_kernel.h"

#include <algorithm>
#include <array>
#include <cmath>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(ESPALIER_SANITIZED)
// One version with vectors of eight, one for any processor; both round alike. Which is taken is decided
// before a sanitizer is ready to watch it.
#define ESP_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define ESP_CLONES
#endif

namespace espalier {
namespace {

constexpr std::int64_t kBlock = 2048;  // elements: four arrays of 8 KiB are in a core's cache
constexpr std::size_t kLanes = 16;     // sums side by side, so that additions need not wait for each other

using Lanes = std::array<double, kLanes>;

ESP_CLONES void add_squares(std::int64_t elements, const float* values, Lanes& lanes) {
  double sums[kLanes];
  for (std::size_t k = 0; k < kLanes; ++k) sums[k] = lanes[k];
  std::int64_t i = 0;
  for (; i + static_cast<std::int64_t>(kLanes) <= elements; i += static_cast<std::int64_t>(kLanes)) {
    for (std::size_t k = 0; k < kLanes; ++k) {
      const double value = values[static_cast<std::size_t>(i) + k];
      sums[k] += value * value;
    }
  }
  for (; i < elements; ++i) {
    const double value = values[i];
    sums[static_cast<std::size_t>(i) % kLanes] += value * value;
  }
  for (std::size_t k = 0; k < kLanes; ++k) lanes[k] = sums[k];
}

double total(const Lanes& lanes) {
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

ESP_CLONES void adam_block(const AdamStep& s, std::int64_t elements, const float* __restrict gradient,
                           float* __restrict parameter, float* __restrict mean, float* __restrict square) {
  const AdamStep step = s;  // a copy that no store can change
  for (std::int64_t i = 0; i < elements; ++i) {
    const float p = parameter[i] * step.shrink;
    const float g = gradient[i] + step.decay * p;
    const float m = mean[i] + step.new_mean * (g - mean[i]);
    const float v = square[i] * step.keep_square + step.new_square * g * g;
    mean[i] = m;
    square[i] = v;
    parameter[i] = p + step.minus_step_size * m / (std::sqrt(v) / step.correction + step.epsilon);
  }
}

}  // namespace

double adam_step(const AdamStep& step, std::int64_t elements, const float* gradient, float* parameter,
                 float* mean, float* square) {
  Lanes lanes{};
  for (std::int64_t begin = 0; begin < elements; begin += kBlock) {
    const std::int64_t length = std::min(kBlock, elements - begin);
    add_squares(length, gradient + begin, lanes);
    adam_block(step, length, gradient + begin, parameter + begin, mean + begin, square + begin);
  }
  return total(lanes);
}

double sum_of_squares(std::int64_t elements, const float* values) {
  Lanes lanes{};
  for (std::int64_t begin = 0; begin < elements; begin += kBlock) {
    add_squares(std::min(kBlock, elements - begin), values + begin, lanes);
  }
  return total(lanes);
}

}  // namespace espalier
