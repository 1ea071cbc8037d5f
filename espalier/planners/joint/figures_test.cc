#include "espalier/planners/joint/figures.h"

#include <gtest/gtest.h>

#include <cmath>

#include "espalier/planners/toy_for_tests.h"

namespace espalier::joint {
namespace {

// 10 ms forward and 20 back, then 20 and 40; 4000 bytes of a sample in between; a weight of 4 MB each.
constexpr const char* kTwoLayers =
    "batch 1..64\nx = input() : f32[b]\nv = parameter(v) : f32[1000000]\nw = parameter(w) : f32[1000000]\n"
    "h = f(x, v) : f32[b,1000] @class=c10\nloss = f(h, w) : f32[] @class=c20\nreturn loss\n";
// A message of 4000 bytes takes 4 ms and 1 ms of latency.
constexpr const char* kSlowLinks =
    "kind gpu 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
    "group network 1MB latency=1ms\ndevice a gpu in network\ndevice b gpu in network\ndevice c gpu in "
    "network\n";

StageDraft stage(const Toy& toy, std::initializer_list<const char*> names, std::vector<DeviceId> devices) {
  std::vector<OperatorId> operators;
  for (const char* name : names) operators.push_back(*toy.graph.find_operator(name));
  return {.operators = OperatorSet(std::move(operators)), .devices = std::move(devices), .after = {}};
}

Proposal plan_of(std::vector<StageDraft> stages) {
  return {.stages = std::move(stages), .micro_batch = BatchSize(1), .schedule = ScheduleKind::kOneFOneB};
}

PlanFigures figures(const Toy& toy, const Proposal& plan) {
  const Problem problem = toy.problem();
  const Space space(problem);
  return FigureTables(space).of(plan);
}

// Four samples: the first device computes 4 · 30 ms, the second 4 · 60 from 10 + 5 ms on, and the way back is
// 5 + 20 ms.
TEST(PlanFigures, OfAChainAreThoseOfHand) {
  const Toy toy(kTwoLayers, kSlowLinks, 4);
  const PlanFigures found =
      figures(toy, plan_of({stage(toy, {"h"}, {DeviceId(0U)}), stage(toy, {"loss"}, {DeviceId(1)})}));
  const auto time = [&](PlanFigures::Time which) { return found.times[which]; };
  EXPECT_NEAR(time(PlanFigures::kBusiest), 0.240, 1e-9);
  EXPECT_NEAR(time(PlanFigures::kNext), 0.120, 1e-9);
  EXPECT_NEAR(time(PlanFigures::kMean), 0.120, 1e-9);
  EXPECT_NEAR(time(PlanFigures::kSpread), std::sqrt((0.24 * 0.24 + 0.12 * 0.12) / 3), 1e-9);
  EXPECT_NEAR(time(PlanFigures::kPath), 0.100, 1e-9);
  EXPECT_NEAR(time(PlanFigures::kEnds), 0.280, 1e-9);
  EXPECT_NEAR(time(PlanFigures::kClosing), 0.280, 1e-9);
  EXPECT_EQ(time(PlanFigures::kSum), 0);
  EXPECT_NEAR(time(PlanFigures::kWire), 0.016, 1e-9);
  EXPECT_NEAR(time(PlanFigures::kTraffic), 0.016 / 3, 1e-9);
  EXPECT_NEAR(time(PlanFigures::kHeaviest), 0.060, 1e-9);
  const auto shape = [&](PlanFigures::Shape which) { return found.shapes[which]; };
  EXPECT_NEAR(shape(PlanFigures::kStages), 2.0 / 3, 1e-9);
  EXPECT_NEAR(shape(PlanFigures::kDepth), 2.0 / 3, 1e-9);
  EXPECT_NEAR(shape(PlanFigures::kUsed), 2.0 / 3, 1e-9);
  EXPECT_EQ(shape(PlanFigures::kMicroBatches), 2);
  EXPECT_EQ(shape(PlanFigures::kReplicas), 1);
  EXPECT_EQ(shape(PlanFigures::kCircle), 0);
  // Four copies of 4 MB; two micro-batches of 4000 bytes in flight.
  EXPECT_NEAR(shape(PlanFigures::kFullness), (16e6 + 8000) / (1 << 30), 1e-9);
}

// Two devices: a ring sends half of 4 MB twice, 1 ms of latency each time.
TEST(PlanFigures, ASumOfGradientsCountsWhereAStageHasReplicas) {
  const Toy toy(kTwoLayers, kSlowLinks, 4);
  const PlanFigures found = figures(
      toy, plan_of({stage(toy, {"h"}, {DeviceId(0U), DeviceId(2)}), stage(toy, {"loss"}, {DeviceId(1)})}));
  EXPECT_NEAR(found.times[PlanFigures::kSum], 4.002, 1e-9);
  EXPECT_NEAR(found.times[PlanFigures::kClosing], 0.060 + 4.002, 1e-9);
  EXPECT_NEAR(found.times[PlanFigures::kNext], 0.060, 1e-9);
  EXPECT_EQ(found.shapes[PlanFigures::kReplicas], 1.5);
}

TEST(PlanFigures, StagesThatWaitForEachOtherHaveNoPath) {
  const Toy toy(kTwoLayers, kSlowLinks, 4);
  Proposal plan = plan_of({stage(toy, {"h"}, {DeviceId(0U)}), stage(toy, {"loss"}, {DeviceId(1)})});
  plan.stages[0].after = {1};
  const PlanFigures found = figures(toy, plan);
  EXPECT_EQ(found.shapes[PlanFigures::kCircle], 1);
  EXPECT_EQ(found.times[PlanFigures::kPath], 0);
  EXPECT_EQ(found.times[PlanFigures::kEnds], 0);
  EXPECT_NEAR(found.times[PlanFigures::kBusiest], 0.240, 1e-9);
}

TEST(PlanFigures, OrdersAndRecomputationAreTold) {
  const Toy toy(kTwoLayers, kSlowLinks, 4);
  Proposal plan = plan_of({stage(toy, {"h"}, {DeviceId(0U)}), stage(toy, {"loss"}, {DeviceId(1)})});
  plan.stages[0].recompute = plan.stages[0].operators;
  plan.stages[1].more_in_flight = -1;
  plan.schedule.backward = OrderRule::Backward::kSplit;
  plan.schedule.group = {4};
  const PlanFigures found = figures(toy, plan);
  EXPECT_NEAR(found.times[PlanFigures::kNext], 0.160, 1e-9);  // 10 ms more for each sample
  EXPECT_EQ(found.shapes[PlanFigures::kRecomputed], 0.5);
  EXPECT_EQ(found.shapes[PlanFigures::kLeastAhead], -1);
  EXPECT_EQ(found.shapes[PlanFigures::kMostAhead], 0);
  EXPECT_EQ(found.shapes[PlanFigures::kSplit], 1);
  EXPECT_EQ(found.shapes[PlanFigures::kGroup], 2);
}

TEST(MoveFigures, AreTheSecondPlansAndTheDifferences) {
  PlanFigures before, after;
  before.times[PlanFigures::kBusiest] = 0.5;
  after.times[PlanFigures::kBusiest] = 0.25;
  after.shapes[PlanFigures::kSplit] = 1;
  const MoveFigures move = figures_of(before, milliseconds(500), after);
  EXPECT_EQ(move.values[0], 0.5F);
  EXPECT_EQ(move.values[1], -0.5F);
  const std::size_t split = 2 * (PlanFigures::kTimes + std::size_t{PlanFigures::kSplit});
  EXPECT_EQ(move.values[split], 1);
  EXPECT_EQ(move.values[split + 1], 1);
  after.times[PlanFigures::kBusiest] = 1e9;
  EXPECT_EQ(figures_of(before, milliseconds(500), after).values[0], 16);  // no farther
}

}  // namespace
}  // namespace espalier::joint
