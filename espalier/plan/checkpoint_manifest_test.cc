#include "espalier/plan/checkpoint_manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/graph/text.h"
#include "espalier/plan/plan_file.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::refusal;

constexpr const char* kTwoLayers =
    "x = input() : f32[b,4]\n"
    "w = parameter(w) : f32[4,4]\n"
    "v = parameter(v) : f32[4,4]\n"
    "h = linear(x, w) : f32[b,4]\n"
    "y = linear(h, v) : f32[b,4]\n";

Graph two_layers() {
  return parse_graph(kTwoLayers);
}

CheckpointManifest manifest_of(const Graph& graph) {
  CheckpointManifest manifest;
  manifest.model = "two";
  manifest.fingerprint = graph.fingerprint();
  for (std::size_t i = 0; i < graph.operators().size(); ++i)
    manifest.operators.push_back(operator_fingerprint(graph, OperatorId(i)));
  manifest.step = 40;
  manifest.seed = 0xfedcba9876543210;
  manifest.training.batch = BatchSize(8);
  manifest.training.micro_batches = {BatchSize(2)};
  manifest.training.optimizer.schedule = {LearningRateSchedule::Shape::kCosine, 3, 100};
  manifest.training.optimizer.clip_norm = 0.5;
  manifest.data = {.seed = 5, .samples = 100, .epoch = 3, .position = 24};
  manifest.shards = {{"shard-0-of-2.safetensors", 300}, {"shard-1-of-2.safetensors", 100}};
  const StoredContent content{"F32", {4, 4}, 0x0123456789abcdef};
  manifest.variables = {{"v", 1, content, {}}, {"w", 0, content, {content, content}}};
  return manifest;
}

TEST(CheckpointManifest, ReadsBackWhatWasPrinted) {
  CheckpointManifest manifest = manifest_of(two_layers());
  EXPECT_EQ(parse_checkpoint(print_checkpoint(manifest), "c"), manifest);
  manifest.data = {.seed = 5};
  EXPECT_EQ(parse_checkpoint(print_checkpoint(manifest), "c"), manifest);
  EXPECT_EQ(parse_variables(print_variables(manifest.variables), "c"), manifest.variables);
}

TEST(CheckpointManifest, AShardIsAFileBesideIt) {
  CheckpointManifest manifest = manifest_of(two_layers());
  manifest.shards[0].file = "../../etc/passwd";
  EXPECT_THAT(refusal([&] { parse_checkpoint(print_checkpoint(manifest), "c"); }),
              AllOf(HasSubstr("shards[0].file"), HasSubstr("beside")));
}

TEST(CheckpointManifest, AnotherModelIsRefusedByWhatDiffersFirst) {
  const CheckpointManifest manifest = manifest_of(two_layers());
  const auto error = [&](std::string text, const std::string& from, const std::string& to) {
    for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
      text.replace(at, from.size(), to);
    const Graph graph = parse_graph(text);
    return refusal([&] { check_model(manifest, graph, "c"); });
  };
  EXPECT_EQ(error(kTwoLayers, "z", "z"), "(nothing was refused)");
  EXPECT_THAT(error(kTwoLayers, "parameter(v) : f32[4,4]", "parameter(v) : f32[5,4]"),
              HasSubstr("'v' is F32[4,4] there and has another shape here"));
  EXPECT_THAT(error(kTwoLayers, "y = linear(h, v)", "y = linear(x, v)"),
              AllOf(HasSubstr("operator 'y'"), HasSubstr("resume with the model")));
  EXPECT_THAT(error(std::string(kTwoLayers) + "parameter(u) : f32[2]\n", "z", "z"),
              HasSubstr("it has no 'u'"));
}

TEST(CheckpointManifest, MomentsOfAnotherOptimizerDoNotFit) {
  CheckpointManifest manifest = manifest_of(two_layers());
  Optimizer optimizer = manifest.training.optimizer;
  optimizer.learning_rate = 7;
  EXPECT_EQ(refusal([&] { check_optimizer(manifest, optimizer, "c"); }), "(nothing was refused)");
  optimizer.kind = OptimizerKind::kAdamW;
  EXPECT_THAT(refusal([&] { check_optimizer(manifest, optimizer, "c"); }), HasSubstr("--optimizer adam"));
  manifest.training.optimizer = {.kind = OptimizerKind::kSgd, .momentum = 0.9};
  optimizer = {.kind = OptimizerKind::kSgd};
  EXPECT_THAT(refusal([&] { check_optimizer(manifest, optimizer, "c"); }),
              AllOf(HasSubstr("sgd with momentum"), HasSubstr("--momentum 0.9")));
}

TEST(CheckpointManifest, WhatARunChangesIsTold) {
  const CheckpointManifest manifest = manifest_of(two_layers());
  Training training = manifest.training;
  EXPECT_THAT(training_changes(manifest, training), ElementsAre());
  training.optimizer.learning_rate = 0.5;
  training.optimizer.clip_norm.reset();
  EXPECT_THAT(training_changes(manifest, training),
              ElementsAre("learning rate 0.5, 0.001 before", "clip norm none, 0.5 before"));
}

}  // namespace
}  // namespace espalier
