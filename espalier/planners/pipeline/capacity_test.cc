#include "espalier/planners/pipeline/capacity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "espalier/base/rng.h"

namespace espalier::internal {
namespace {

TEST(Capacity, IsRoundedUpPerMilleOfTheFastest) {
  EXPECT_EQ(capacity_in(7, 7), 1'000);
  EXPECT_EQ(capacity_in(1, 2), 500);
  EXPECT_EQ(capacity_in(1, 3), 334);
  EXPECT_EQ(capacity_in(1, std::int64_t{1} << 60), 1);
  EXPECT_EQ(capacity_in(std::int64_t{1} << 60, (std::int64_t{1} << 60) + 1), 1'000);
}

TEST(Capacity, TellsTheLeastTime) {
  EXPECT_EQ(least_time(0, 0), 0);
  EXPECT_EQ(least_time(1, 0), kNeverDone);
  EXPECT_EQ(least_time(3'000, 2'000), 1'500);
  EXPECT_EQ(least_time(7, 3'000), 2);
  EXPECT_LE(least_time(kNeverDone, 2'000), kNeverDone / 2);
  EXPECT_GT(least_time(kNeverDone, 2'000), kNeverDone / 3);
}

TEST(Capacity, WhatNobodyCanDoIsNoWork) {
  const Capacities found = capacities({{-1, 4, 0, -1}, {6, 8, 0, -1}});
  EXPECT_EQ(found.work, (std::vector<std::int64_t>{6, 4, 0, 0}));
  EXPECT_EQ(found.of_class, (std::vector<std::int64_t>{1'000, 1'000}));
  EXPECT_EQ(capacities({{2, 4}, {4, 16}}).of_class, (std::vector<std::int64_t>{1'000, 500}));
}

// Pieces of random work for two kinds of devices, dealt to some of either in every way.
TEST(Capacity, NoDealIsBelowIt) {
  Rng rng(7);
  std::int64_t reached = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const auto pieces = static_cast<std::size_t>(1 + rng.below(5)),
               devices = static_cast<std::size_t>(1 + rng.below(3));
    std::vector<std::vector<std::int64_t>> takes(2);  // by kind, piece
    for (auto& of_kind : takes) {
      for (std::size_t p = 0; p < pieces; ++p)
        of_kind.push_back(static_cast<std::int64_t>(1 + rng.below(50)));
    }
    std::vector<std::size_t> kind_of;
    for (std::size_t d = 0; d < devices; ++d) kind_of.push_back(rng.below(2));
    const Capacities found = capacities(takes);
    const std::int64_t work = std::accumulate(found.work.begin(), found.work.end(), std::int64_t{0});
    std::int64_t all = 0, ways = 1, best = kNeverDone;
    for (const std::size_t kind : kind_of) all += found.of_class[kind];
    for (std::size_t p = 0; p < pieces; ++p) ways *= static_cast<std::int64_t>(devices);
    for (std::int64_t way = 0; way < ways; ++way) {
      std::vector<std::int64_t> busy(devices, 0);
      std::int64_t left = way;
      for (std::size_t p = 0; p < pieces; ++p, left /= static_cast<std::int64_t>(devices)) {
        const auto d = static_cast<std::size_t>(left % static_cast<std::int64_t>(devices));
        busy[d] += takes[kind_of[d]][p];
      }
      best = std::min(best, *std::max_element(busy.begin(), busy.end()));
    }
    ASSERT_LE(least_time(work, all), best);
    reached += least_time(work, all) == best ? 1 : 0;
  }
  EXPECT_GT(reached, 10);  // it says something
}

}  // namespace
}  // namespace espalier::internal
