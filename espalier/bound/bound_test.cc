#include "espalier/bound/bound.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/cluster/text.h"
#include "espalier/graph/text.h"
#include "espalier/sim/simulate.h"
#include "testing/random_staged_model.h"
#include "testing/worked_example.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

TEST(StagesBound, TheWorkedExampleIsBoundByATower) {
  const auto example = testing::worked_example(testing::WorkedExample::kGraphPipeline);
  const Bound bound = stages_bound(example.model, example.cluster);
  EXPECT_EQ(bound.scope, Bound::Scope::kTheseStages);
  EXPECT_EQ(bound.time, milliseconds(4 * 6));
  EXPECT_THAT(bound.why, HasSubstr("dev0: 24.0 ms of work"));
}

TEST(StagesBound, ADeviceBehindOthersStartsLateAndLeavesATail) {
  // The head alone, made slow: 2 + 0.5 before it, 4 × (5 + 10) of its own, 0.5 + 4 behind it.
  auto example = testing::worked_example(testing::WorkedExample::kGraphPipeline);
  StageTimes& head = example.model.stages[2].replicas[0].times;
  head.forward = milliseconds(5);
  head.input_gradient = milliseconds(10);
  head.weight_gradient = Duration();
  for (std::size_t tower : {0, 1}) {
    StageTimes& times = example.model.stages[tower].replicas[0].times;
    times.input_gradient = milliseconds(4);
    times.weight_gradient = Duration();
  }
  EXPECT_EQ(stages_bound(example.model, example.cluster).time, microseconds(2500 + 60'000 + 4500));
  EXPECT_EQ(simulate(example.model, example.cluster).iteration, microseconds(2500 + 60'000 + 4500));
}

TEST(StagesBound, NeverExceedsASimulatedStep) {
  Rng rng(3);
  int compared = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    testing::RandomModelOptions options;
    options.unequal_sizes = trial % 4 == 0;
    const testing::RandomModel random = testing::random_staged_model(rng, options);
    const Schedule schedule = make_schedule(random.model, random.cluster.devices().size());
    if (!check_schedule(random.model, schedule).empty()) continue;
    ++compared;
    EXPECT_LE(stages_bound(random.model, random.cluster).time,
              simulate(random.model, random.cluster, schedule).iteration)
        << trial;
  }
  EXPECT_GT(compared, 1500);
}

struct Towers {
  Graph graph = parse_graph(
      "x = input() : f32[b]\ny = input() : f32[b]\nw = parameter(w) : f32[1]\nv = parameter(v) : f32[1]\n"
      "img = tower(x, w) : f32[b] @class=tower\ntxt = tower(y, v) : f32[b] @class=tower\n"
      "loss = head(img, txt) : f32[] @class=head\nreturn loss\n");
  Training training{.batch = BatchSize(4), .micro_batches = {BatchSize(1)}, .optimizer = {}};

  static CostTable costs(std::int64_t slow_factor) {
    CostTableParts parts;
    for (const auto& [name, ms] : {std::pair{"head", 1}, std::pair{"tower", 2}}) {
      for (const auto& [kind, factor] : {std::pair{"gpu", std::int64_t{1}}, std::pair{"slow", slow_factor}}) {
        OperatorCost cost;
        cost.forward = cost.input_gradient = cost.weight_gradient = milliseconds(ms * factor);
        parts.rows.push_back({name, kind, {}, {{BatchSize(1), cost}}});
      }
    }
    return CostTable(parts);
  }
};

constexpr const char* kKinds =
    "kind gpu 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\nkind slow 1GiB f32=1e12 f16=1e12 mem=100GB "
    "launch=0ns sms=1\n"
    "group network latency=500us lanes=unlimited\n";

TEST(AnyPlanBound, TheWorkedExampleIsSixtyMillisecondsOverThreeDevices) {
  const Towers towers;
  const Cluster cluster = parse_cluster_lines(
      std::string(kKinds) + "device a gpu in network\ndevice b gpu in network\ndevice c gpu in network\n");
  const Bound bound = any_plan_bound(towers.graph, cluster, Towers::costs(1), towers.training);
  EXPECT_EQ(bound.scope, Bound::Scope::kAnyPlan);
  EXPECT_EQ(bound.time, milliseconds(4 * (6 + 6 + 3) / 3));
  EXPECT_THAT(bound.why, HasSubstr("3 devices"));
}

TEST(AnyPlanBound, ADeviceThatIsThreeTimesSlowerCountsForAThird) {
  // 60 ms of work on one fast device, 180 on the slow one: 60 / (1 + 1/3) = 45 ms, less the guard against
  // rounding.
  const Towers towers;
  const Cluster cluster =
      parse_cluster_lines(std::string(kKinds) + "device a gpu in network\ndevice b slow in network\n");
  const Duration time = any_plan_bound(towers.graph, cluster, Towers::costs(3), towers.training).time;
  EXPECT_LE(time, milliseconds(45));
  EXPECT_GE(time, milliseconds(45) - nanoseconds(100));
}

TEST(AnyPlanBound, AllSizesCountWhateverPlannersMayChoose) {
  // 2 ms a micro-batch of one sample, 3 ms one of four: the whole batch at once takes 3 · 3 ms on a tower.
  const Towers towers;
  CostTableParts parts = Towers::costs(1).parts();
  for (CostRow& row : parts.rows) {
    OperatorCost cost = row.points[0].cost;
    cost.forward = cost.input_gradient = cost.weight_gradient = milliseconds(3);
    row.points.push_back({BatchSize(4), cost});
  }
  const Cluster cluster = parse_cluster_lines(std::string(kKinds) + "device a gpu in network\n");
  const Graph graph = parse_graph("batch 1..4\n" + print_graph(towers.graph));
  EXPECT_EQ(any_plan_bound(graph, cluster, CostTable(parts), towers.training).time, milliseconds(3 * 9));
}

TEST(AnyPlanBound, AGroupThatSharesAnOperatorMayBeQuicker) {
  // On one device 6 ms a tower and 3 the head, four times. In groups of two 3 · 0.5 ms each, on both devices:
  // a tower then takes less, 4 · 2 · 1.5 ms of device time.
  const Towers towers;
  CostTableParts parts = Towers::costs(1).parts();
  OperatorCost cost;
  cost.forward = cost.input_gradient = cost.weight_gradient = microseconds(500);
  parts.rows.push_back({"tower", "gpu", {2, false}, {{BatchSize(1), cost}}});
  const Cluster cluster =
      parse_cluster_lines(std::string(kKinds) + "device a gpu in network\ndevice b gpu in network\n");
  const Bound bound = any_plan_bound(towers.graph, cluster, CostTable(parts), towers.training);
  EXPECT_EQ(bound.time, milliseconds(4 * (2 * 3 + 3) / 2));
}

TEST(AnyPlanBound, NobodysBackwardWaitsForAnOperatorWithoutOne) {
  // A measure of `h` takes 100 ms, `h` itself 2 ms and head 1, each half of their backwards as long: after
  // the 102 ms of the longest path nothing is left to do on it.
  const Graph graph = parse_graph(
      "x = input() : f32[b]\nw = parameter(w) : f32[1]\nh = f(x, w) : f32[b] @class=h\n"
      "m = f(h) : f32[b] @class=m @nograd\nloss = head(h) : f32[] @class=head\nreturn loss\n");
  CostTableParts parts;
  for (const auto& [name, ms] : {std::pair{"h", 2}, std::pair{"head", 1}, std::pair{"m", 100}}) {
    OperatorCost cost;
    cost.forward = cost.input_gradient = cost.weight_gradient = milliseconds(ms);
    parts.rows.push_back({name, "gpu", {}, {{BatchSize(1), cost}}});
  }
  const Cluster cluster = parse_cluster_lines(
      std::string(kKinds) + "device a gpu in network\ndevice b gpu in network\ndevice c gpu in network\n");
  const Training training{.batch = BatchSize(1), .micro_batches = {BatchSize(1)}, .optimizer = {}};
  EXPECT_EQ(any_plan_bound(graph, cluster, CostTable(parts), training).time, milliseconds(102));
}

TEST(AnyPlanBound, UpdatesCount) {
  // 8 bytes of parameters at 10 ms a byte are 80 ms for each device or 80 together, less a nanosecond for
  // rounding in each stage; beside 60 ms of work.
  const Towers towers;
  CostTableParts parts = Towers::costs(1).parts();
  KindOverhead overhead;
  overhead.kind = "gpu";
  overhead.updates = {{OptimizerKind::kAdam, Duration(), 10'000'000'000}};
  parts.overheads.push_back(overhead);
  const Cluster cluster = parse_cluster_lines(std::string(kKinds) + "device a gpu in network\n");
  EXPECT_EQ(any_plan_bound(towers.graph, cluster, CostTable(parts), towers.training).time,
            milliseconds(140) - nanoseconds(2));
}

TEST(AnyPlanBound, WithManyDevicesTheLongestPathCounts) {
  // tower 2, head 1, head's gradients 1 + 1, then the tower's 2 + 2 after head's input gradient: 2 + 1 + 1 +
  // 2 + 2 = 8 ms.
  const Towers towers;
  std::string text = kKinds;
  for (int d = 0; d < 40; ++d) text += "device d" + std::to_string(d) + " gpu in network\n";
  const Bound bound =
      any_plan_bound(towers.graph, parse_cluster_lines(text), Towers::costs(1), towers.training);
  EXPECT_EQ(bound.time, milliseconds(8));
  EXPECT_THAT(bound.why, HasSubstr("longest path"));
}

}  // namespace
}  // namespace espalier
