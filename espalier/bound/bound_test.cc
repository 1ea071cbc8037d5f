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

std::string gpus(int count) {
  std::string text;
  for (int d = 0; d < count; ++d) text += "device d" + std::to_string(d) + " gpu in network\n";
  return text;
}

TEST(AnyPlanBound, WithManyDevicesTheLongestPathCounts) {
  // tower 2, head 1, head's gradients 1 + 1, then the tower's 2 + 2 after head's input gradient: 2 + 1 + 1 +
  // 2 + 2 = 8 ms.
  Towers towers;
  towers.training.batch = BatchSize(1);
  const Cluster cluster = parse_cluster_lines(kKinds + gpus(40));
  const Bound bound = any_plan_bound(towers.graph, cluster, Towers::costs(1), towers.training);
  EXPECT_EQ(bound.time, milliseconds(8));
  EXPECT_THAT(bound.why, HasSubstr("longest path"));
}

TEST(AnyPlanBound, ReplicasPayForTheSumOfTheirGradients) {
  // Four samples. A tower on four devices: its gradient is there after 4 ms, 2 + 2 ms of backward, and a sum
  // over four devices is six steps of 500 us: 11 ms. On two: 4 + 2 · 4 + 1 = 13, on one 4 + 4 · 4 = 20.
  const Towers towers;
  const Cluster cluster = parse_cluster_lines(kKinds + gpus(40));
  const Bound bound = any_plan_bound(towers.graph, cluster, Towers::costs(1), towers.training);
  EXPECT_EQ(bound.time, milliseconds(11));
  EXPECT_THAT(bound.why, HasSubstr("'img' has all its passes and its update in few places"));
}

// A chain of four layers of 1 ms a half, 3 GB of parameters each, over links of 1 GB/s: no replicas. Six
// devices.
struct Layers {
  Graph graph = parse_graph(
      "x = input() : f32[b]\n"
      "u = parameter(u) : f32[750000000]\nv = parameter(v) : f32[750000000]\n"
      "w = parameter(w) : f32[750000000]\nz = parameter(z) : f32[750000000]\n"
      "a = f(x, u) : f32[b] @class=layer\nb = f(a, v) : f32[b] @class=layer\n"
      "c = f(b, w) : f32[b] @class=layer\nloss = f(c, z) : f32[] @class=layer\nreturn loss\n");
  Training training{.batch = BatchSize(4), .micro_batches = {BatchSize(1)}, .optimizer = {}};

  static CostTable costs() {
    CostTableParts parts;
    OperatorCost cost;
    cost.forward = cost.input_gradient = cost.weight_gradient = milliseconds(1);
    parts.rows.push_back({"layer", "gpu", {}, {{BatchSize(1), cost}}});
    return CostTable(parts);
  }
  static Cluster cluster(int devices) {
    return parse_cluster_lines(
        "kind gpu 64GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
        "group network 1GB latency=0us\n" +
        gpus(devices));
  }
};

TEST(PlanBound, WhoHasNothingToReadWaits) {
  // 4 · 4 · 3 ms on two devices: 24 ms each. For the first millisecond only layer a has something to read,
  // so one device waits: 24.5 ms.
  const Layers layers;
  const Bound bound =
      plan_bound(layers.graph, Layers::cluster(2), Layers::costs(), layers.training, Bound::Scope::kOneSize);
  EXPECT_LE(bound.time, microseconds(24'500));
  EXPECT_GE(bound.time, microseconds(24'500) - nanoseconds(100));
  EXPECT_THAT(bound.why, HasSubstr("500.0 us of it to fill and drain them"));
}

TEST(PlanBound, AnOperatorThatNobodyShouldReplicateIsInOnePlace) {
  // Four devices: 12 ms each. The loss comes after 3 ms, and its device then has 4 · 3 ms: 15 ms. So it is
  // for layer a, whose first gradient is there after 4 + 3 ms, behind which are 4 · 2 ms.
  const Layers layers;
  const Bound bound =
      plan_bound(layers.graph, Layers::cluster(4), Layers::costs(), layers.training, Bound::Scope::kOneSize);
  EXPECT_EQ(bound.time, milliseconds(15));
  EXPECT_THAT(bound.why, HasSubstr("'a' has all its passes"));
}

TEST(PlanBound, ReplicasOfAnotherKindPayAsMuch) {
  // The same where one of the two devices is of another kind, as quick as the first.
  const Layers layers;
  CostTableParts parts = Layers::costs().parts();
  CostRow slow = parts.rows.front();
  slow.kind = "slow";
  parts.rows.push_back(std::move(slow));
  const Cluster cluster = parse_cluster_lines(
      "kind gpu 64GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
      "kind slow 64GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
      "group network 1GB latency=0us\ndevice a gpu in network\ndevice b slow in network\n");
  const Bound bound =
      plan_bound(layers.graph, cluster, CostTable(parts), layers.training, Bound::Scope::kOneSize);
  EXPECT_LE(bound.time, microseconds(24'500));
  EXPECT_GE(bound.time, microseconds(24'500) - nanoseconds(100));
}

TEST(PlanBound, AStepThatNeedsReplicasPaysForTheirUpdates) {
  // On two devices 4 · 3 ms of a, its update of 6 ms and 4 · 3 ms of b: 15 ms each. One device has 18 ms with
  // a alone; with two replicas of a there are two updates, 18 ms each. b's update takes 6 us.
  const Graph graph = parse_graph(
      "x = input() : f32[b]\nw = parameter(w) : f32[1000]\nv = parameter(v) : f32[1]\n"
      "a = f(x, w) : f32[b] @class=layer\nb = f(x, v) : f32[b] @class=layer\n"
      "loss = g(a, b) : f32[] @class=none\nreturn loss\n");
  CostTableParts parts = Layers::costs().parts();
  parts.rows.push_back({"none", "gpu", {}, {{BatchSize(1), OperatorCost()}}});
  KindOverhead overhead;
  overhead.kind = "gpu";
  overhead.updates = {{OptimizerKind::kAdam, Duration(), 1'500'000}};
  parts.overheads.push_back(overhead);
  const Training training{.batch = BatchSize(4), .micro_batches = {BatchSize(1)}, .optimizer = {}};
  const Bound bound =
      plan_bound(graph, Layers::cluster(2), CostTable(parts), training, Bound::Scope::kOneSize);
  EXPECT_LE(bound.time, milliseconds(18));
  EXPECT_GE(bound.time, milliseconds(18) - microseconds(10));
  EXPECT_THAT(bound.why, HasSubstr("the replicas that so short a step needs"));
}

TEST(PlanBound, ReplicasOnTwoHostsSumTheirGradientsOverTheNetwork) {
  // Two hosts of two devices. 6 · 4 ms of a, 6 · 2 ms of b: 9 ms each. In less than 12 ms a has three
  // replicas, one of which takes 2 · 4 ms and then has a third of 1 MB over 1 GB/s, 2 · 2 times.
  const Graph graph = parse_graph(
      "x = input() : f32[b]\nw = parameter(w) : f32[250000]\nv = parameter(v) : f32[1]\n"
      "a = f(x, w) : f32[b] @class=layer\nb = f(x, v) : f32[b] @class=small\n"
      "loss = g(a, b) : f32[] @class=none\nreturn loss\n");
  CostTableParts parts;
  for (const auto& [name, us] : {std::pair{"layer", 1000}, std::pair{"small", 500}, std::pair{"none", 0}}) {
    OperatorCost cost;
    cost.forward = microseconds(2 * us);
    cost.input_gradient = cost.weight_gradient = microseconds(us);
    parts.rows.push_back({name, "gpu", {}, {{BatchSize(1), cost}}});
  }
  const Cluster cluster = parse_cluster_lines(
      "kind gpu 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\ngroup network 1GB latency=0us\n"
      "group left in network 100GB latency=0us\ngroup right in network 100GB latency=0us\n"
      "device a gpu in left\ndevice b gpu in left\ndevice c gpu in right\ndevice d gpu in right\n");
  const Training training{.batch = BatchSize(6), .micro_batches = {BatchSize(1)}, .optimizer = {}};
  const Bound bound = plan_bound(graph, cluster, CostTable(parts), training, Bound::Scope::kOneSize);
  EXPECT_LE(bound.time, nanoseconds(9'333'336));
  EXPECT_GE(bound.time, nanoseconds(9'333'336) - microseconds(10));
  EXPECT_THAT(bound.why, HasSubstr("'a' has all its passes"));
}

// A chain of three operators of 1 ms a half, each of which keeps half a gigabyte of a micro-batch, on two
// devices of 1 GiB.
struct Keeping {
  Graph graph = parse_graph(
      "batch 1..4\nx = input() : f32[b]\nw = parameter(w) : f32[1]\na = f(x, w) : f32[b] @class=layer\n"
      "b = f(a) : f32[b] @class=layer\nloss = f(b) : f32[] @class=layer\nreturn loss\n");
  Cluster cluster = parse_cluster_lines(kKinds + gpus(2));

  static CostTable costs(std::int64_t bytes_of_four) {
    CostTableParts parts;
    OperatorCost one, four;
    one.forward = one.input_gradient = one.weight_gradient = milliseconds(1);
    one.private_bytes = Bytes(500'000'000);
    four.forward = four.input_gradient = four.weight_gradient = milliseconds(2);
    four.private_bytes = Bytes(bytes_of_four);
    parts.rows.push_back({"layer", "gpu", {}, {{BatchSize(1), one}, {BatchSize(4), four}}});
    return CostTable(parts);
  }
  Duration bound(std::vector<BatchSize> sizes, std::int64_t bytes_of_four, Bound::Plans plans) const {
    const Training training{.batch = BatchSize(4), .micro_batches = std::move(sizes), .optimizer = {}};
    return plan_bound(graph, cluster, costs(bytes_of_four), training, Bound::Scope::kOneSize, plans).time;
  }
};

TEST(PlanBound, DevicesWithoutRoomForMoreMicroBatchesWait) {
  // 4 · 9 ms on two devices: 18 ms. For 3 ms nobody can begin a backward pass, and 2 GiB have room for 4.29
  // forward passes: of 6 ms 1.71 are lost, 0.85 on each. Memory is looked at for 2.92 ms.
  const Keeping keeping;
  EXPECT_EQ(keeping.bound({BatchSize(1)}, 0, Bound::Plans::kAll), milliseconds(18));
  const Duration time = keeping.bound({BatchSize(1)}, 0, Bound::Plans::kThatFit);
  EXPECT_LE(time, microseconds(18'853));
  EXPECT_GE(time, microseconds(18'700));
}

TEST(PlanBound, AMicroBatchThatFitsNowhereIsInNoPlan) {
  // All four samples at once: 3 · 6 ms on one device, one behind the other; in each operator 2 GB.
  const Keeping keeping;
  const std::vector<BatchSize> both{BatchSize(1), BatchSize(4)};
  EXPECT_LT(keeping.bound(both, 2'000'000'000, Bound::Plans::kAll), milliseconds(18));
  EXPECT_GE(keeping.bound(both, 2'000'000'000, Bound::Plans::kThatFit), microseconds(18'700));
  // With no other size nothing fits.
  EXPECT_EQ(keeping.bound({BatchSize(4)}, 2'000'000'000, Bound::Plans::kThatFit),
            keeping.bound({BatchSize(4)}, 2'000'000'000, Bound::Plans::kAll));
}

TEST(PlanBound, AWiderScopeHasASmallerBound) {
  // One device. 2 ms a half of a tower, 1 of the head, four times: 4 · 15 ms in micro-batches of one; in
  // those of four 1.5 times as long for a tower, 8 times for the head, once.
  const Towers towers;
  CostTableParts parts = Towers::costs(1).parts();
  for (CostRow& row : parts.rows) {
    OperatorCost cost = row.points[0].cost;
    cost.forward = cost.input_gradient = cost.weight_gradient = milliseconds(row.op_class == "head" ? 8 : 3);
    row.points.push_back({BatchSize(4), cost});
  }
  const Graph graph = parse_graph("batch 1..4\n" + print_graph(towers.graph));
  const Cluster cluster = parse_cluster_lines(kKinds + gpus(1));
  Training training = towers.training;
  const auto bound = [&](Bound::Scope scope) {
    const Bound found = plan_bound(graph, cluster, CostTable(parts), training, scope);
    EXPECT_EQ(found.scope, scope);
    return found.time;
  };
  training.micro_batches = {BatchSize(1), BatchSize(4)};
  EXPECT_EQ(bound(Bound::Scope::kOneSize), milliseconds(3 * (3 + 3 + 8)));
  EXPECT_EQ(bound(Bound::Scope::kOfferedSizes), milliseconds(3 * (3 + 3 + 4)));
  EXPECT_EQ(bound(Bound::Scope::kAnyPlan), milliseconds(3 * (3 + 3 + 4)));
  training.micro_batches = {BatchSize(1)};
  EXPECT_EQ(bound(Bound::Scope::kOneSize), milliseconds(60));
  EXPECT_EQ(bound(Bound::Scope::kOfferedSizes), milliseconds(60));
  EXPECT_EQ(bound(Bound::Scope::kAnyPlan), milliseconds(30));
}

TEST(PlanBound, APlanIsInTheNarrowestScopeThatHoldsItsSizes) {
  const Training training{
      .batch = BatchSize(4), .micro_batches = {BatchSize(1), BatchSize(2)}, .optimizer = {}};
  const auto scope = [&](std::int64_t first, std::int64_t second) {
    PipelinePlan plan;
    plan.stages.resize(2);
    plan.stages[0].micro_batch = BatchSize(first);
    plan.stages[1].micro_batch = BatchSize(second);
    return scope_of(plan, training);
  };
  EXPECT_EQ(scope(2, 2), Bound::Scope::kOneSize);
  EXPECT_EQ(scope(2, 1), Bound::Scope::kOfferedSizes);
  EXPECT_EQ(scope(4, 1), Bound::Scope::kAnyPlan);
}

}  // namespace
}  // namespace espalier
