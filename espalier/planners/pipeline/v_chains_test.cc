#include "espalier/planners/pipeline/v_chains.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "espalier/bound/bound.h"
#include "espalier/planners/pipeline/checkpointed.h"
#include "espalier/planners/toy_for_tests.h"

namespace espalier {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// The best V of pieces of so many layers.
Outcome best_v(const Toy& toy, std::size_t layers_of_a_piece = 1) {
  const Problem problem = toy.problem();
  Context context;
  Judge judge(problem, context);
  const CutGraph graph(problem.graph);
  const std::size_t count = toy.graph.operators().size() / layers_of_a_piece;
  const PieceTable pieces(problem, graph, BatchSize(1), count, PieceTable::Cuts::kAll);
  std::vector<DeviceId> row;
  for (std::size_t d = 0; d < toy.cluster.devices().size(); ++d) row.push_back(DeviceId(d));
  judge_v_chains(problem, std::array{&pieces}, {row}, judge, context);
  return judge.outcome();
}

const PipelinePlan& plan_of(const Outcome& outcome) {
  return std::get<PipelinePlan>(*outcome.plan);
}

bool has_halves(const PipelinePlan& plan) {
  for (const std::vector<Step>& list : *plan.orders.lists()) {
    if (std::ranges::any_of(list,
                            [](const Step& step) { return step.kind == ActionKind::kWeightGradient; })) {
      return true;
    }
  }
  return false;
}

TEST(VChains, GoDownTheRowAndUpAgain) {
  const Toy toy(wide_chain(std::vector<std::int64_t>(12, 1)), kThreeDevices, 6);
  const Outcome outcome = best_v(toy);
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  std::vector<std::size_t> devices, layers;
  for (const Stage& stage : plan_of(outcome).stages) {
    devices.push_back(stage.replicas.front().devices.front().index());
    layers.push_back(stage.operators.size());
  }
  EXPECT_THAT(devices, ElementsAre(0, 1, 2, 2, 1, 0));
  EXPECT_THAT(layers, Each(2));
  EXPECT_EQ(recomputed_operators(outcome), 0U);
  EXPECT_TRUE(has_halves(plan_of(outcome)));
  EXPECT_LT(toy.simulated(outcome), milliseconds(6 * 12 * 3 / 3 + 24));  // less idle than a row: 2 · 12 ms
}

TEST(VChains, ComputeAgainWhatMemoryDoesNotHold) {
  const Toy toy =
      with_memory(Toy(wide_chain(std::vector<std::int64_t>(36, 1)), kThreeDevices, 6), {Bytes(20 << 20)});
  const Outcome outcome = best_v(toy, 3);
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  EXPECT_GT(recomputed_operators(outcome), 0U);
  EXPECT_LT(recomputed_operators(outcome), 36U);
  toy.simulated(outcome);
}

TEST(VChains, GoBackAsAWholeWhereHalvesAreAGuess) {
  const Toy toy = with_guessed_halves(Toy(wide_chain(std::vector<std::int64_t>(12, 1)), kThreeDevices, 6));
  const Outcome outcome = best_v(toy);
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  EXPECT_FALSE(has_halves(plan_of(outcome)));
  toy.simulated(outcome);
}

TEST(VChains, StandWhereNobodyAskedForARule) {
  const Toy toy =
      with_memory(Toy(wide_chain(std::vector<std::int64_t>(24, 1)), kThreeDevices, 12), {Bytes(64 << 20)});
  Problem problem = toy.problem();
  Context context, again;
  const Outcome ruled = checkpointed(problem, {}, context);
  ASSERT_EQ(ruled.status, Status::kFeasible) << ruled.why;
  EXPECT_EQ(plan_of(ruled).orders.lists(), nullptr);
  problem.lists = true;
  const Outcome any = checkpointed(problem, {}, again);
  ASSERT_EQ(any.status, Status::kFeasible) << any.why;
  EXPECT_NE(plan_of(any).orders.lists(), nullptr);
  EXPECT_LT(toy.simulated(any), toy.simulated(ruled));
  EXPECT_THAT(any.of_other_sizes, ElementsAre(plan_of(ruled)));  // with which a search can begin
}

// The least longest device of all V's of these layers on two devices.
std::int64_t best_cut(const std::vector<std::int64_t>& times) {
  std::int64_t best = 1'000'000;
  const std::size_t n = times.size();
  const auto sum = [&](std::size_t from, std::size_t to) {
    std::int64_t total = 0;
    for (std::size_t i = from; i < to; ++i) total += 3 * times[i];
    return total;
  };
  for (std::size_t a = 1; a + 2 < n; ++a) {
    for (std::size_t b = a + 2; b < n; ++b) {
      best = std::min(best, std::max(sum(0, a) + sum(b, n), sum(a, b)));
    }
  }
  return best;
}

TEST(VChains, AreCutSoThatTheLongestDeviceIsShort) {
  Rng rng(31);
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<std::int64_t> times;
    for (int i = 0; i < 9; ++i) times.push_back(static_cast<std::int64_t>(1 + rng.below(4)));
    const Toy toy(wide_chain(times), kTwoEqualDevices, 4);
    const Outcome outcome = best_v(toy);
    ASSERT_TRUE(outcome.plan.has_value());
    std::array<std::int64_t, 2> load{};
    for (const Stage& stage : plan_of(outcome).stages) {
      for (const OperatorId op : stage.operators) {
        load[stage.replicas.front().devices.front().index()] += 3 * times[op.index()];
      }
    }
    const std::int64_t longest = std::max(load[0], load[1]), best = best_cut(times);
    EXPECT_GE(longest, best);
    EXPECT_LE(longest, best + 6);  // half of the longest layer, for runs about equally long
  }
}

TEST(VChains, BeatNoBound) {
  Rng rng(23);
  int fits = 0, again = 0;
  for (int trial = 0; trial < 40; ++trial) {
    std::vector<std::int64_t> times;
    for (int i = 0; i < 24; ++i) times.push_back(static_cast<std::int64_t>(1 + rng.below(4)));
    const auto memory = Bytes(static_cast<std::int64_t>(8 + rng.below(24)) << 20);
    const Toy toy = with_memory(Toy(wide_chain(times), kThreeDevices, 5), {memory});
    const Outcome outcome = best_v(toy, 3);
    if (!outcome.plan) continue;
    ++fits;
    again += recomputed_operators(outcome) > 0 ? 1 : 0;
    const Bound bound = plan_bound(toy.graph, toy.cluster, toy.costs, toy.training, Bound::Scope::kOneSize);
    EXPECT_GE(toy.simulated(outcome), bound.time);
  }
  EXPECT_GE(fits, 20);
  EXPECT_GE(again, 5);
}

}  // namespace
}  // namespace espalier
