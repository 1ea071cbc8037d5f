#pragma once

// How benchmarks measure: processor time of the calling thread, which other processes change little.

#include <algorithm>
#include <ctime>
#include <functional>
#include <limits>

namespace espalier {

inline double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The least of so many rounds, in seconds.
inline double best_of(int rounds, const std::function<void()>& work) {
  double best = std::numeric_limits<double>::max();
  for (int i = 0; i < rounds; ++i) {
    const double begin = thread_seconds();
    work();
    best = std::min(best, thread_seconds() - begin);
  }
  return best;
}

}  // namespace espalier
