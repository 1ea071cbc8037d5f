#include "espalier/planners/pipeline/checkpointed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "espalier/planners/candidate.h"
#include "espalier/planners/pipeline/even.h"
#include "espalier/planners/pipeline/pipedream.h"
#include "espalier/planners/toy_for_tests.h"
#include "testing/small_cases.h"

namespace espalier {
namespace {

using espalier::testing::of_usual;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Outcome found(const Toy& toy) {
  Context context;
  return checkpointed(toy.problem(), {}, context);
}

const std::vector<std::int64_t> kTwelve(12, 1);

TEST(Checkpointed, ComputesNothingAgainWhereMemoryIsPlenty) {
  const Toy toy(wide_chain(kTwelve), kThreeDevices, 6);
  const Outcome outcome = found(toy);
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  EXPECT_EQ(recomputed_operators(outcome), 0U);
  EXPECT_THAT(std::get<PipelinePlan>(*outcome.plan).stages, SizeIs(3));
  Context context;
  EXPECT_EQ(toy.simulated(outcome), toy.simulated(even(toy.problem(), {}, context)));
}

// Three micro-batches fill three devices faster in several rounds.
TEST(Checkpointed, FewMicroBatchesPassTheDevicesInRounds) {
  const Toy toy(wide_chain(std::vector<std::int64_t>(24, 1)), kThreeDevices, 3);
  const Outcome outcome = found(toy);
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  EXPECT_GT(std::get<PipelinePlan>(*outcome.plan).stages.size(), 3U);
  Context context;
  EXPECT_LT(toy.simulated(outcome), toy.simulated(even(toy.problem(), {}, context)));
}

// A device holds 4 layers. As a whole the first would keep 4 MiB of each of 3 micro-batches.
TEST(Checkpointed, FindsAPlanWhereNoChainFitsThatKeepsAll) {
  const Toy toy = with_memory(Toy(wide_chain(kTwelve), kThreeDevices, 6), {Bytes(10 << 20)});
  Context context, again;
  EXPECT_EQ(even(toy.problem(), {}, context).status, Status::kInfeasible);
  EXPECT_EQ(pipedream(toy.problem(), {}, again).status, Status::kInfeasible);
  const Outcome outcome = found(toy);
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  EXPECT_GT(recomputed_operators(outcome), 0U);
  // With one in flight a micro-batch passes all layers, there and back, before the next: 4 ms each.
  EXPECT_LT(toy.simulated(outcome), milliseconds(6 * 12 * 4));
}

TEST(Checkpointed, TheLastDeviceKeepsWhatTheFirstCannot) {
  const Toy toy = with_memory(Toy(wide_chain(kTwelve), kThreeDevices, 6), {Bytes(12 << 20)});
  const Outcome outcome = found(toy);
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  const auto& stages = std::get<PipelinePlan>(*outcome.plan).stages;
  EXPECT_THAT(stages.front().recompute, ::testing::Not(IsEmpty()));
  EXPECT_THAT(stages.back().recompute, IsEmpty());
  for (const Stage& stage : stages) EXPECT_THAT(stage.replicas, SizeIs(1));
}

TEST(Checkpointed, TheDeviceWithMoreMemoryTakesMoreLayers) {
  const Toy toy =
      with_memory(Toy(wide_chain(kTwelve), kTwoEqualDevices, 2), {Bytes(4 << 20), Bytes(16 << 20)});
  const Outcome outcome = found(toy);
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  toy.simulated(outcome);
  std::vector<std::size_t> layers(2);
  for (const Stage& stage : std::get<PipelinePlan>(*outcome.plan).stages) {
    layers[stage.replicas.front().devices.front().index()] += stage.operators.size();
  }
  EXPECT_GT(layers[1], layers[0]);
}

TEST(Checkpointed, WhatComesClosestIsTheOneThatKeepsLeast) {
  const Toy toy = with_memory(Toy(wide_chain(kTwelve), kThreeDevices, 6), {Bytes(1 << 20)});
  const Outcome outcome = found(toy);
  EXPECT_EQ(outcome.status, Status::kInfeasible);
  ASSERT_TRUE(outcome.closest.has_value());
  Context context;
  EXPECT_LT(outcome.closest->lack(), even(toy.problem(), {}, context).closest->lack());
}

TEST(Checkpointed, DoesNotKeepPins) {
  const Toy toy(wide_chain(kTwelve), kThreeDevices, 6);
  Context context;
  const Outcome outcome = checkpointed(toy.problem({{"y0", DeviceId(1)}}), {}, context);
  EXPECT_EQ(outcome.status, Status::kUnsupported);
  EXPECT_THAT(outcome.why, HasSubstr("does not keep pins"));
}

// Of all chains on two devices the fastest that fits: every cut into stages, every first stage of the second
// device, each stage recomputed or not, one number in flight for each device.
std::optional<Duration> best_checkpointed_chain(const Toy& toy) {
  const Problem problem = toy.problem();
  const std::size_t n = toy.graph.operators().size();
  Context context;
  Judge judge(problem, context);
  for (std::size_t cuts = 0; cuts < std::size_t{1} << (n - 1); ++cuts) {
    std::vector<StageDraft> stages;
    for (std::size_t op = 0; op < n; ++op) {
      if (op == 0 || (cuts >> (op - 1) & 1) != 0)
        stages.push_back({.operators = {}, .devices = {}, .after = {}});
      stages.back().operators = united(stages.back().operators, OperatorSet({OperatorId(op)}));
    }
    const std::size_t count = stages.size();
    for (std::size_t on_first = 0; on_first <= count; ++on_first) {
      for (std::size_t again = 0; again < std::size_t{1} << count; ++again) {
        for (std::int32_t fewer = 0; fewer < 9; ++fewer) {
          std::vector<StageDraft> drafts = stages;
          for (std::size_t s = 0; s < count; ++s) {
            const bool first = s < on_first;
            drafts[s].devices = {DeviceId(first ? 0 : 1)};
            if ((again >> s & 1) != 0) drafts[s].recompute = drafts[s].operators;
            drafts[s].more_in_flight = first ? -(fewer % 3) : -(fewer / 3);
          }
          judge.consider(drafts, BatchSize(1), OrderRule(ScheduleKind::kOneFOneB));
        }
      }
    }
  }
  return judge.best();
}

TEST(Checkpointed, ComesCloseToTheBestOfAllChainsAndNeverBeatsIt) {
  Rng rng(17);
  int fits = 0, planned = 0, best_ones = 0;
  for (int trial = 0; trial < of_usual(20); ++trial) {
    std::vector<std::int64_t> times;
    for (int i = 0; i < 5; ++i) times.push_back(static_cast<std::int64_t>(1 + rng.below(4)));
    const auto memory = Bytes(static_cast<std::int64_t>(3 + rng.below(6)) << 20);
    const Toy toy = with_memory(Toy(wide_chain(times), kTwoEqualDevices, 3), {memory});
    const std::optional<Duration> best = best_checkpointed_chain(toy);
    const Outcome outcome = found(toy);
    fits += best ? 1 : 0;
    if (!outcome.plan) continue;
    ASSERT_TRUE(best.has_value());
    const Duration time = toy.simulated(outcome);
    EXPECT_GE(time, *best);
    EXPECT_LE(time.count(), best->count() * 21 / 20);
    ++planned;
    best_ones += time == *best ? 1 : 0;
  }
  EXPECT_GE(fits, of_usual(20) / 2);
  EXPECT_EQ(planned, fits);
  EXPECT_GE(best_ones, planned - 2);
}

}  // namespace
}  // namespace espalier
