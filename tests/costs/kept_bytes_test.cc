// What the analytic model says a CPU keeps for backward, against what PyTorch 2.13 kept: real models, one
// stage, one micro-batch. kept_by_torch.py prints the figures.

#include <gmock/gmock.h>

#include "espalier/frontend/imported.h"
#include "espalier/plan/staged_model.h"

namespace espalier {
namespace {

struct Kept {
  const char* model;
  std::int64_t batch;
  std::int64_t bytes;
};

constexpr Kept kExact[] = {
    {"dlrm", 7, 4312},    {"gpt", 6, 60244},           {"gpt2", 6, 122564},     {"llama", 6, 38852},
    {"resnet", 7, 67156}, {"three_branch", 7, 175396}, {"two_tower", 7, 56124}, {"two_tower_fixed", 4, 31980},
};
// Group norms keep two numbers a group. The graph does not say how many groups there are, so the model counts
// one a channel: 2400 bytes more, 1.9 %.
constexpr Kept kUnet = {"unet", 5, 126400};

Bytes kept_on_cpu(const Kept& kept) {
  const Graph graph =
      import_file(std::string(ESPALIER_SOURCE_DIR) + "/tests/fixtures/" + kept.model + ".pt2").graph;
  const Cluster cluster = parse_cluster("1xcpu");
  const BatchSize batch(kept.batch);
  PipelinePlan plan;
  plan.batch = batch;
  Stage stage;
  stage.name = "all";
  stage.micro_batch = batch;
  for (std::size_t i = 0; i < graph.operators().size(); ++i) stage.operators.emplace_back(i);
  stage.replicas.push_back({{DeviceId(0)}, {0}});
  plan.stages.push_back(stage);
  EXPECT_THAT(check_plan(graph, cluster, plan), ::testing::IsEmpty());
  Training training;
  training.batch = batch;
  const CostTable costs = complete_costs(graph, cluster, CostTable({}), {&batch, 1});
  return stage_model(graph, cluster, costs, training, plan).stages[0].memory.saved;
}

TEST(KeptBytes, EqualThoseOfPyTorch) {
  for (const Kept& kept : kExact) EXPECT_EQ(kept_on_cpu(kept), Bytes(kept.bytes)) << kept.model;
}

TEST(KeptBytes, AreOverCountedWhereTheGraphDoesNotSay) {
  EXPECT_EQ(kept_on_cpu(kUnet), Bytes(kUnet.bytes + 2400));
}

}  // namespace
}  // namespace espalier
