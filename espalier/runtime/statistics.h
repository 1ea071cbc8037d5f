#pragma once

// Statistics of measured times.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "espalier/base/check.h"

namespace espalier {

// The upper one of two in the middle. O(n).
inline double median(std::vector<double> values) {
  ESP_CHECK(!values.empty());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The mean without the highest and the lowest `share`. What is paid many times in a step counts with its
// mean, the frequent slow cases included; where a host has a slow and a fast state, the median jumps between
// the two. O(n log n).
inline double trimmed_mean(std::vector<double> values, double share) {
  ESP_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  ESP_CHECK(share >= 0 && share < 0.5, share);
  const auto cut = static_cast<std::size_t>(share * static_cast<double>(values.size()));
  double sum = 0;
  for (std::size_t i = cut; i < values.size() - cut; ++i) sum += values[i];
  return sum / static_cast<double>(values.size() - 2 * cut);
}

}  // namespace espalier
