// Evaluation between steps: what it says, and that training does not notice it.

#include "espalier/runtime/evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "espalier/base/files.h"
#include "espalier/frontend/evaluation.h"
#include "espalier/runtime/data.h"
#include "espalier/runtime/plans_for_tests.h"
#include "espalier/runtime/tensor_file.h"
#include "testing/cut_plan.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using espalier::testing::plan_from_cuts;
using espalier::testing::random_cut_plan;
using espalier::testing::refusal;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(EvaluationSizes, EverySampleOnceIfTheModelAllowsTheRest) {
  const auto sizes = [](std::int64_t samples, std::int64_t min, std::int64_t max) {
    return evaluation_sizes(samples, BatchSize(8), BatchSize(4), {BatchSize(min), BatchSize(max)});
  };
  EXPECT_EQ(sizes(16, 1, 64), (EvaluationSizes{2, 0, 0, 0}));
  EXPECT_EQ(sizes(22, 1, 64), (EvaluationSizes{2, 1, 2, 0}));  // 16 + 4 + 2
  EXPECT_EQ(sizes(21, 2, 64), (EvaluationSizes{2, 0, 5, 0}));  // 16 + 5: one alone is not allowed
  EXPECT_EQ(sizes(17, 2, 64), (EvaluationSizes{2, 0, 0, 1}));  // nothing to join it with
  EXPECT_EQ(sizes(22, 4, 4), (EvaluationSizes{2, 1, 0, 2}));   // a fixed batch
  EXPECT_EQ(sizes(3, 1, 64), (EvaluationSizes{0, 0, 3, 0}));
}

TEST(EvaluationProgram, DropsNothingOutAndUsesRunningStatistics) {
  const LoadedModel model(kFixtures + "three_branch.pt2");
  const ExportedProgram evaluated = evaluation_program(model.exported);
  std::size_t dropouts = 0;
  for (std::size_t i = 0; i < evaluated.calls.size(); ++i) {
    EXPECT_EQ(evaluated.calls[i].target, model.exported.calls[i].target);
    if (evaluated.calls[i].target != "aten::dropout") continue;
    ++dropouts;
    for (const Argument& argument : evaluated.calls[i].arguments) {
      if (argument.name != "train") continue;
      EXPECT_EQ(argument.value, ArgumentValue(false));
    }
    EXPECT_NE(evaluated.calls[i], model.exported.calls[i]);
  }
  EXPECT_EQ(dropouts, 7U);
}

class Evaluated : public ::testing::Test {
 protected:
  Evaluated() : folder_(::testing::TempDir() + "/espalier_evaluated_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~Evaluated() override { std::filesystem::remove_all(folder_); }
  std::string in(const std::string& name) const { return folder_ + "/" + name; }

  // Samples as synthetic data make them.
  std::string write_samples(const LoadedModel& model, std::int64_t count) const {
    const auto data = synthetic_data(model.exported, 5);
    std::map<std::string, at::Tensor> tensors;
    for (std::size_t i = 0; i < model.exported.inputs.size(); ++i)
      tensors[model.exported.inputs[i].name] = data->read(0, i, BatchSize(0), BatchSize(count));
    write_tensors(in("samples.safetensors"), tensors, {});
    return in("samples.safetensors");
  }

  static PlanFile plan_of(const LoadedModel& model, std::size_t stages, std::int64_t batch,
                          std::int64_t micro_batch) {
    Rng rng(4);
    const PipelinePlan plan = random_cut_plan(
        model.graph(), stages, {.batch = BatchSize(batch), .micro_batch = BatchSize(micro_batch)}, rng);
    const Cluster cluster = cpus(static_cast<int>(stages));
    Training training;
    training.batch = BatchSize(batch);
    training.micro_batches = {BatchSize(micro_batch)};
    training.optimizer = {.kind = OptimizerKind::kSgd, .learning_rate = 0.05};
    PlanFile file = make_plan_file(model.graph(), cluster, training, plan,
                                   staged_for_tests(model.graph(), cluster, plan, training.optimizer));
    file.seed = 9;
    return file;
  }

  std::string folder_;
};

TEST_F(Evaluated, IsTheMeanOverSamplesHoweverTheyAreCut) {
  const std::string path = kFixtures + "gpt.pt2";  // has dropout, and sees each sample by itself
  const LoadedModel model(path);
  const std::string samples = write_samples(model, 11);
  const auto evaluated = [&](std::size_t stages, std::int64_t batch, std::int64_t micro_batch) {
    PlanFile plan = plan_of(model, stages, batch, micro_batch);
    plan.training.optimizer.learning_rate = 0;
    RunOptions options;
    options.evaluation_data = samples;
    const RunResult result = run_plan(plan, path, options);
    EXPECT_THAT(result.evaluations, SizeIs(1));
    EXPECT_EQ(result.evaluations[0].samples, BatchSize(11));
    EXPECT_EQ(result.evaluations[0].left_out, 0U);
    return result.evaluations[0].loss;
  };
  const double one = evaluated(1, 22, 11);
  EXPECT_NEAR(evaluated(2, 4, 2), one, 1e-5 * one);  // 4 + 4 + 3
  EXPECT_NEAR(evaluated(3, 8, 2), one, 1e-5 * one);  // 8 + 3
}

TEST_F(Evaluated, TrainingDoesNotNotice) {
  for (const char* const name : {"resnet", "three_branch"}) {  // BatchNorm's statistics; dropout
    const std::string path = kFixtures + name + ".pt2";
    const LoadedModel model(path);
    const PlanFile plan = plan_of(model, 2, 8, 4);
    RunOptions options;
    options.steps = 4;
    options.save = in("alone");
    const RunResult alone = run_plan(plan, path, options);
    options.evaluation_data = write_samples(model, 10);
    options.evaluate_every = 2;
    options.save = in("evaluated");
    const RunResult evaluated = run_plan(plan, path, options);
    EXPECT_EQ(read_file(in("evaluated")), read_file(in("alone"))) << name;
    ASSERT_THAT(evaluated.evaluations, SizeIs(3));
    EXPECT_EQ(evaluated.evaluations[0].step, 0U);
    EXPECT_EQ(evaluated.evaluations[2].step, 4U);
    EXPECT_NE(evaluated.evaluations[1].loss, evaluated.evaluations[2].loss);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(evaluated.steps[i].loss, alone.steps[i].loss);
  }
}

TEST_F(Evaluated, DataThatDoNotFitAreRefused) {
  const std::string path = kFixtures + "gpt.pt2";
  const LoadedModel model(path);
  RunOptions options;
  options.evaluation_data = write_samples(model, 1);
  EXPECT_THAT(refusal([&] { run_plan(plan_of(model, 2, 4, 2), path, options); }),
              HasSubstr("there is nothing to evaluate"));
}

}  // namespace
}  // namespace espalier
