#pragma once

// Statistics of measured times.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>
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

// Relative standard deviation of values around the mean of their own group of `size` successive ones: what
// changes more slowly does not count. Half the distance between what 15.9 % and what 84.1 % stay below, which
// is a normal distribution's deviation, so that a few far ones hardly count either. size >= 2 divides the
// number of values. O(n log n).
inline double deviation_within(const std::vector<double>& values, std::size_t size) {
  ESP_CHECK(size >= 2 && !values.empty() && values.size() % size == 0, size, values.size());
  std::vector<double> relative(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto group = values.begin() + static_cast<std::ptrdiff_t>(i / size * size);
    const double sum = std::accumulate(group, group + static_cast<std::ptrdiff_t>(size), 0.0);
    relative[i] = values[i] * static_cast<double>(size) / sum;
  }
  std::sort(relative.begin(), relative.end());
  const auto below = [&](double share) {
    return relative[static_cast<std::size_t>(share * static_cast<double>(relative.size() - 1))];
  };
  // Each value is a part of its group's mean, which is therefore nearer to it than the true one.
  return (below(0.841) - below(0.159)) / 2 *
         std::sqrt(static_cast<double>(size) / static_cast<double>(size - 1));
}

// Relative variance of the workers' times in one round around their mean, `times[worker][round]`, at least
// two workers: a mean over rounds without the highest and the lowest `trim`. What all workers share does not
// count; that one is always the slower does.
inline double variance_between(const std::vector<std::vector<double>>& times, double trim) {
  ESP_CHECK(times.size() >= 2, times.size());
  const double workers = static_cast<double>(times.size());
  std::vector<double> variance(times.front().size(), 0.0);
  for (std::size_t round = 0; round < variance.size(); ++round) {
    double mean = 0;
    for (const auto& worker : times) mean += worker.at(round) / workers;
    for (const auto& worker : times) {
      const double away = worker[round] / mean - 1;
      variance[round] += away * away / (workers - 1);
    }
  }
  return trimmed_mean(std::move(variance), trim);
}

}  // namespace espalier
