#include "espalier/cost/training_times.h"

#include <gmock/gmock.h>

#include <numeric>

#include "espalier/base/rng.h"
#include "espalier/cost/kept_tensors.h"
#include "espalier/cost/text.h"
#include "espalier/graph/text.h"
#include "testing/random_graphs.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr BatchSize kSamples{4};

CostTable completed(const Graph& graph, const Cluster& cluster,
                    CostTable table = CostTable(CostTableParts{})) {
  return complete_costs(graph, cluster, std::move(table), std::span(&kSamples, 1));
}

TEST(TrainingTimes, AForwardOperatorTakesItsForwardAndABackwardOneItsHalves) {
  const Graph forward = parse_graph(
      "x = input()\n"
      "w = parameter(w) : f32[4]\n"
      "a = f(x, w) @class=first\n"
      "m = mask(a) @class=mask @nograd\n"
      "p = f(a, m) @class=second\n"
      "loss = mean(p) @class=mean\n");
  const CostTable table = parse_costs(
      "overhead dev adam=5us+250ps/B\n"
      "cost first dev batch=4 f=2ms i=3ms w=1ms private=64B saved=in0\n"
      "cost mask dev batch=4 f=7ms i=9ms private=32B\n"
      "cost second dev batch=4 f=1ms i=4ms saved=in1\n"
      "cost mean dev batch=4 f=1us i=2us\n");
  const Cluster cluster = parse_cluster("1xT4");
  ClusterParts parts = cluster.parts();
  parts.kinds[0].name = "dev";
  const Cluster device(parts);
  const OperatorCosts before(forward, device, table, kSamples);
  const Graph training = expand_backward(forward, {.kept = kept_tensors(forward, before, KindId(0))});
  const CostTable costs = completed(training, device, table);
  const OperatorCosts after(training, device, costs, kSamples);
  const std::vector<Duration> times =
      operator_durations(training, device, costs, after, KindId(0), OptimizerKind::kAdam);
  // a, m, p, loss; then the backward of loss, p and a; m has none. w has 16 bytes: 5 µs + 16 · 0.25 ns.
  EXPECT_THAT(times, ElementsAre(milliseconds(2), milliseconds(7), milliseconds(1), microseconds(1),
                                 microseconds(2), milliseconds(4), milliseconds(4), nanoseconds(5004)));
  const auto cost = [&](const char* name) { return after.of(*training.find_operator(name), KindId(0)); };
  EXPECT_EQ(cost("a").private_bytes, Bytes(64)) << "kept for a's backward";
  EXPECT_EQ(cost("m").private_bytes, Bytes()) << "nothing flows back through it";
  EXPECT_EQ(cost("a.backward").private_bytes, Bytes());
  for (std::size_t i = 0; i < training.operators().size(); ++i) {
    EXPECT_EQ(after.of(OperatorId(i), KindId(0)).backward(), Duration());
    EXPECT_TRUE(after.of(OperatorId(i), KindId(0)).saved.empty()) << "edges say what is kept";
  }
  const Operator& backward = training.op(*training.find_operator("p.backward"));
  EXPECT_EQ(backward.inputs.back(), training.op(*training.find_operator("m")).outputs[0]);
}

// What an operator of a forward graph takes, and its backward operator in the training graph of it.
struct BothWays {
  OperatorCost own;
  Duration expanded;
};
BothWays both_ways(const Graph& forward, const std::string& name) {
  const Cluster cluster = parse_cluster("1xA100-80GB");
  const Graph training = expand_backward(forward);
  const CostTable costs = completed(forward, cluster);
  const OperatorCosts before(forward, cluster, costs, kSamples);
  const OperatorCosts after(training, cluster, completed(training, cluster, costs), kSamples);
  return {before.of(*forward.find_operator(name), KindId(0)),
          after.of(*training.find_operator(name + ".backward"), KindId(0)).forward};
}

TEST(TrainingTimes, AnAnalyticHalfFallsAwayWhereNobodyNeedsIt) {
  const Graph forward = parse_graph(
      "x = input() : f32[b,64]\n"
      "w = parameter(w) : f32[64,64]\n"
      "v = parameter(v, frozen) : f32[64,64]\n"
      "a = linear(x, w) : f32[b,64]\n"
      "c = linear(a, w) : f32[b,64]\n"
      "d = linear(c, v) : f32[b,64]\n"
      "loss = mean(d)\n");
  for (const std::string name : {"a", "c", "d"}) {
    const BothWays both = both_ways(forward, name);
    EXPECT_EQ(both.expanded, both.own.backward()) << name;
    EXPECT_EQ(both.own.input_gradient > Duration(), name != "a") << name << ": its input is the user's";
    EXPECT_EQ(both.own.weight_gradient > Duration(), name != "d") << name << ": its parameter is frozen";
  }
}

TEST(TrainingTimes, APublishedBackwardNodeHasACellOfItsOwn) {
  const Graph graph = parse_graph(
      "x = input()\n"
      "a = f(x) @class=n1\n"
      "g = f(a) @class=n2 @backward\n");
  const CostTable table = parse_costs("cost n1 cpu batch=4 f=2ms\ncost n2 cpu batch=4 i=3ms\n");
  const OperatorCosts costs(graph, parse_cluster("1xcpu"), table, kSamples);
  EXPECT_EQ(costs.of(OperatorId(0), KindId(0)).forward, milliseconds(2));
  EXPECT_EQ(costs.of(OperatorId(1), KindId(0)).forward, milliseconds(3));
}

TEST(TrainingTimes, SharesOfAnUpdateAddUpToTheUpdate) {
  const Graph forward = parse_graph(
      "x = input()\n"
      "u = parameter(u) : f32[3]\n"
      "v = parameter(v) : f32[5]\n"
      "w = parameter(w) : f32[7]\n"
      "a = f(x, u, v, w)\n"
      "loss = mean(a)\n");
  const Graph training = expand_backward(forward);
  ClusterParts parts = parse_cluster("1xcpu").parts();
  parts.kinds[0].speed = 0.7;
  const Cluster cluster(parts);
  const CostTable costs = completed(training, cluster, parse_costs("overhead cpu sgd=3us+777ps/B\n"));
  const OperatorCosts at(training, cluster, costs, kSamples);
  const auto times = operator_durations(training, cluster, costs, at, KindId(0), OptimizerKind::kSgd);
  const Duration shares = times[times.size() - 3] + times[times.size() - 2] + times.back();
  // 60 bytes: 3 µs + ⌈46,620 ps⌉ = 3,047 ns; at speed 0.7: 4,353 ns.
  EXPECT_EQ(shares, nanoseconds(4353));
}

TEST(TrainingTimes, TheSumIsTheForwardGraphsToTheNanosecond) {
  Rng rng(17);
  const Cluster cluster = parse_cluster("1xV100-16GB+1xcpu");
  std::size_t compared = 0, whole = 0;
  for (int round = 0; round < 200; ++round) {
    const Graph forward =
        testing::random_graph(rng, {.operators = 1 + rng.below(30), .mutations = round % 3 == 0});
    const CostTable costs = completed(forward, cluster);
    const OperatorCosts before(forward, cluster, costs, kSamples);
    for (const KindId kind : {KindId(0), KindId(1)}) {
      std::optional<Graph> training;
      try {
        training = expand_backward(forward, {.kept = kept_tensors(forward, before, kind)});
      } catch (const InputError&) {
        continue;  // nothing to differentiate
      }
      const CostTable all = completed(*training, cluster);
      const OperatorCosts after(*training, cluster, all, kSamples);
      const auto times = operator_durations(*training, cluster, all, after, kind, OptimizerKind::kAdamW);
      Duration expected, everything;
      for (std::size_t i = 0; i < forward.operators().size(); ++i) {
        const OperatorCost& cost = before.of(OperatorId(i), kind);
        const bool differentiated =
            training->find_operator(forward.operators()[i].name + ".backward").has_value();
        expected += cost.forward + (differentiated ? cost.backward() : Duration());
        everything += cost.forward + cost.backward();
      }
      Bytes updated;
      for (const Operator& op : training->operators()) {
        if (op.role == OperatorRole::kUpdate)
          updated += training->parameter(*training->tensor(op.inputs[0]).parameter).bytes();
      }
      if (updated != Bytes()) {
        expected += update_time(all.overhead(cluster.kind(kind).name), OptimizerKind::kAdamW, updated);
      }
      EXPECT_EQ(std::accumulate(times.begin(), times.end(), Duration()), expected) << print_graph(forward);
      ++compared;
      whole += expected >= everything ? 1 : 0;
    }
  }
  EXPECT_GT(compared, 200U);
  EXPECT_GT(whole, 20U) << "in some graphs everything with a gradient leads to the loss";
}

TEST(KeptTensors, RefusesACellOfAnotherOperator) {
  const Graph graph = parse_graph("x = input()\nw = parameter(w) : f32[4]\na = f(x, w) @class=k\n");
  const OperatorCosts costs(graph, parse_cluster("1xcpu"),
                            parse_costs("cost k cpu batch=4 f=1ms saved=in2\n"), kSamples);
  EXPECT_THAT(testing::refusal([&] { kept_tensors(graph, costs, KindId(0)); }),
              HasSubstr("saves input 2, but operator 'a' has 2"));
}

}  // namespace
}  // namespace espalier
