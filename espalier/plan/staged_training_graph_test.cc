// A training graph as stages: what a step takes and holds is what its forward graph's does.

#include <gmock/gmock.h>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/cost/kept_tensors.h"
#include "espalier/graph/algorithms.h"
#include "espalier/graph/expand_backward.h"
#include "espalier/graph/text.h"
#include "espalier/plan/staged_model.h"
#include "testing/random_graphs.h"

namespace espalier {
namespace {

using ::testing::IsEmpty;

constexpr BatchSize kSize{4};

StagedStage whole_on_one_device(const Graph& graph, const Cluster& cluster, const CostTable& costs) {
  PipelinePlan plan;
  plan.batch = BatchSize(8);
  Stage stage;
  stage.name = "all";
  stage.operators = graph_order(graph);
  stage.replicas = {{{DeviceId(0)}, {0, 1}}};
  stage.micro_batch = kSize;
  stage.in_flight = 2;
  plan.stages = {stage};
  EXPECT_THAT(check_plan(graph, cluster, plan), IsEmpty());
  Training training;
  training.batch = plan.batch;
  const StagedModel staged = stage_model(graph, cluster, costs, training, plan);
  EXPECT_THAT(check_staged_model(staged, cluster), IsEmpty());
  return staged.stages[0];
}

CostTable analytic(const Graph& graph, const Cluster& cluster) {
  return complete_costs(graph, cluster, CostTable(CostTableParts{}), std::span(&kSize, 1));
}

TEST(StagedTrainingGraph, TakesAndHoldsWhatItsForwardGraphDoes) {
  const Cluster cluster = parse_cluster("1xV100-16GB");
  Rng rng(29);
  std::size_t equal = 0;
  for (int round = 0; round < 100; ++round) {
    const Graph forward = testing::random_graph(
        rng,
        {.operators = 1 + rng.below(20), .views = false, .non_gradient = false, .max_batch = BatchSize(16)});
    const CostTable costs = analytic(forward, cluster);
    const OperatorCosts at(forward, cluster, costs, kSize);
    std::optional<Graph> training;
    try {
      training = expand_backward(forward, {.kept = kept_tensors(forward, at, KindId(0))});
    } catch (const InputError&) {
      continue;  // nothing is trained
    }
    const StagedStage before = whole_on_one_device(forward, cluster, costs);
    const StagedStage after = whole_on_one_device(*training, cluster, analytic(*training, cluster));
    const StageTimes own = before.replicas[0].times, times = after.replicas[0].times;
    Duration idle;  // of backwards that lead nowhere, which a forward graph counts
    for (std::size_t i = 0; i < forward.operators().size(); ++i) {
      if (!training->find_operator(forward.operators()[i].name + ".backward"))
        idle += at.of(OperatorId(i), KindId(0)).backward();
    }
    EXPECT_EQ(times.forward + times.backward() + idle, own.forward + own.backward());
    EXPECT_EQ(times.backward(), Duration());
    EXPECT_EQ(times.update, own.update) << "once a step";
    EXPECT_EQ(after.memory.parameters, before.memory.parameters);
    EXPECT_EQ(after.memory.buffers, before.memory.buffers + Bytes(4)) << "the loss's gradient, a constant";
    EXPECT_EQ(after.memory.gradients, before.memory.gradients);
    EXPECT_EQ(after.memory.optimizer_state, before.memory.optimizer_state);
    equal += idle == Duration() ? 1 : 0;
  }
  EXPECT_GT(equal, 20U);
}

TEST(StagedTrainingGraph, AGradientThatAnUpdateReadsIsCountedOnce) {
  // 1 KiB of weights; activations of 16 bytes at most.
  const Graph forward = parse_graph(
      "x = input() : f32[b]\n"
      "w = parameter(w) : f32[256]\n"
      "a = scale(x, w) : f32[b]\n"
      "loss = mean(a)\n");
  const Cluster cluster = parse_cluster("1xV100-16GB");
  const Graph training = expand_backward(forward);
  const StagedStage stage = whole_on_one_device(training, cluster, analytic(training, cluster));
  EXPECT_EQ(stage.memory.gradients, Bytes(1024));
  EXPECT_LT(stage.memory.forward_workspace, Bytes(100));
}

}  // namespace
}  // namespace espalier
