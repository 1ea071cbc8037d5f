#pragma once

// All small cases: every DAG of a few stages with every mix of what a schedule may have. Times and sizes are
// small numbers, so that ties are common.

#include <cstdint>

#include "espalier/cluster/cluster.h"
#include "espalier/schedule/schedule.h"

namespace espalier::testing {

// What a small case may have, all combinations of which are tried.
struct Features {
  bool gpipe = false, contention = false, endpoints = false, shared_devices = false, split_halves = false,
       recompute = false, unequal = false, replicas = false;
  explicit Features(unsigned bits)
      : gpipe(bits & 1),
        contention(bits & 2),
        endpoints(bits & 4),
        shared_devices(bits & 8),
        split_halves(bits & 16),
        recompute(bits & 32),
        unequal(bits & 64),
        replicas(bits & 128) {}
  static constexpr unsigned kAll = 256;
};

struct SmallCase {
  StagedModel model;
  Cluster cluster;
  Schedule schedule;
};

// Of the cases with most stages a sanitized build takes one in so many: it is ten times as slow, and looks
// for mistakes of memory, which a few hundred cases show as well as thousands. Other builds take all.
#if defined(ESPALIER_SANITIZED)  // by the build: clang and g++ tell it in different ways
inline constexpr unsigned kOneIn = 8;
#else
inline constexpr unsigned kOneIn = 1;
#endif
// Of so many trials what such a build takes, at least one.
inline constexpr int of_usual(int trials) {
  const int some = trials / static_cast<int>(kOneIn);
  return some > 0 ? some : 1;
}

// `edges`: bit x + y (y - 1) / 2 says whether stage y reads from stage x < y. The rest follows from the seed.
// Unequal sizes may come with limits that are too small for the larger: check_schedule then refuses them.
SmallCase small_case(std::size_t stages, unsigned edges, Features features, std::uint64_t seed);

}  // namespace espalier::testing
