// Training that stops and goes on is training that never stopped: under the same plan, under another, with
// clipping and a schedule.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "espalier/base/files.h"
#include "espalier/runtime/checkpoint.h"
#include "espalier/runtime/checkpoint_folder.h"
#include "espalier/runtime/data.h"
#include "espalier/runtime/loaded_model.h"
#include "espalier/runtime/plans_for_tests.h"
#include "espalier/runtime/runtime.h"
#include "espalier/runtime/tensor_file.h"
#include "testing/cut_plan.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using espalier::testing::random_cut_plan;
using espalier::testing::refusal;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr std::uint64_t kSteps = 5;

class Resume : public ::testing::Test {
 protected:
  Resume() : folder_(::testing::TempDir() + "/espalier_resume_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~Resume() override { std::filesystem::remove_all(folder_); }
  std::string in(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
};

Optimizer with_everything(OptimizerKind kind) {
  Optimizer optimizer{.kind = kind, .learning_rate = 0.01, .momentum = 0.9, .weight_decay = 0.1};
  optimizer.schedule = {LearningRateSchedule::Shape::kCosine, 2, 7};
  optimizer.clip_norm = 0.5;
  optimizer.no_decay = {"*bias"};
  return optimizer;
}

// The sizes that a model allows: a fixed batch has one.
std::pair<BatchSize, BatchSize> batch_of(const Graph& graph) {
  const BatchSize micro_batch = graph.batch().fixed() ? graph.batch().min : BatchSize(2);
  return {2 * micro_batch, micro_batch};
}

PlanFile plan_of(const Graph& graph, std::size_t stages, const Optimizer& optimizer, std::uint64_t seed) {
  const auto [batch, micro_batch] = batch_of(graph);
  Rng rng(seed);
  const PipelinePlan plan = random_cut_plan(graph, stages, {.batch = batch, .micro_batch = micro_batch}, rng);
  const Cluster cluster = cpus(static_cast<int>(stages));
  Training training;
  training.batch = batch;
  training.micro_batches = {micro_batch};
  training.optimizer = optimizer;
  PlanFile file =
      make_plan_file(graph, cluster, training, plan, staged_for_tests(graph, cluster, plan, optimizer));
  file.seed = 17;
  return file;
}

// Nothing that a gradient flows into is read in two stages: no sum depends on the plan.
bool is_bit_equal(const PlanFile& file, const Graph& graph) {
  const PipelinePlan plan = resolve_plan(file, graph);
  std::map<StorageId, std::set<std::size_t>> readers;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const OperatorId op : plan.stages[s].operators) {
      for (const TensorId id : graph.op(op).inputs) {
        if (graph.tensor(id).requires_grad) readers[graph.tensor(id).storage].insert(s);
      }
    }
  }
  return std::none_of(readers.begin(), readers.end(),
                      [](const auto& each) { return each.second.size() > 1; });
}

RunOptions options_of(std::uint64_t steps, const std::string& checkpoints = "") {
  RunOptions options;
  options.steps = steps;
  options.trace = TraceSteps::kNone;
  if (!checkpoints.empty()) options.checkpoints = {.folder = checkpoints, .every = 2};
  return options;
}

// From that step of the result on.
std::vector<double> losses(const RunResult& result, std::size_t first = 0) {
  std::vector<double> values;
  for (std::size_t i = first; i < result.steps.size(); ++i) values.push_back(result.steps[i].loss);
  return values;
}

// Every value and moment of a checkpoint by name, as its hash.
std::map<std::string, std::vector<std::uint64_t>> contents(const std::string& folder) {
  std::map<std::string, std::vector<std::uint64_t>> hashes;
  for (const CheckpointVariable& variable : read_manifest(*find_checkpoint(folder)).variables) {
    hashes[variable.name].push_back(variable.value.hash);
    for (const StoredContent& state : variable.state) hashes[variable.name].push_back(state.hash);
  }
  return hashes;
}

double largest_difference(const std::string& a, const std::string& b) {
  const auto left = read_tensors(a), right = read_tensors(b);
  EXPECT_EQ(left.size(), right.size());
  double largest = 0;
  for (const auto& [name, value] : left) {
    if (value.numel() == 0) continue;
    const at::Tensor difference = (value.to(at::kDouble) - right.at(name).to(at::kDouble)).abs();
    largest = std::max(largest, difference.max().item<double>());
  }
  return largest;
}

class ResumedModels : public Resume, public ::testing::WithParamInterface<const char*> {};

TEST_P(ResumedModels, GoOnUnderAnotherPlanAsIfNothingHadHappened) {
  const std::string path = kFixtures + GetParam() + ".pt2";
  const LoadedModel model(path);
  const std::uint64_t seed = Rng(std::string_view(GetParam()).size()).next();
  const std::uint64_t k = 1 + seed % (kSteps - 1);  // a checkpoint at any step, not only where one is due
  const Optimizer optimizer = with_everything(OptimizerKind::kAdamW);
  const PlanFile two = plan_of(model.graph(), 2, optimizer, seed),
                 three = plan_of(model.graph(), 3, optimizer, seed + 1);

  RunOptions options = options_of(kSteps, in("never-stopped"));
  options.save = in("never-stopped.safetensors");
  const RunResult expected = run_plan(two, path, options);
  PlanFile first = two;  // the schedule is the whole training's
  run_plan(first, path, options_of(k, in("stopped")));
  EXPECT_THAT(complete_checkpoints(in("stopped")), SizeIs(k / 2 + k % 2));

  for (const PlanFile* plan : {&two, &three}) {
    const std::string name = plan == &two ? "two" : "three";
    RunOptions rest = options_of(kSteps, in(name));
    rest.resume = in("stopped");
    rest.save = in(name + ".safetensors");
    const RunResult result = run_plan(*plan, path, rest);
    EXPECT_EQ(result.first_step, k);
    ASSERT_THAT(result.steps, SizeIs(kSteps - k));
    if (plan == &two || (is_bit_equal(two, model.graph()) && is_bit_equal(three, model.graph()))) {
      EXPECT_EQ(losses(result), losses(expected, k));
      EXPECT_EQ(contents(in(name)), contents(in("never-stopped")));
      EXPECT_EQ(read_file(in(name + ".safetensors")), read_file(in("never-stopped.safetensors")));
    } else {
      // Adam's first steps turn roundings of gradients that are zero in theory into steps of the learning
      // rate, so no difference is larger than the steps that were made.
      EXPECT_LE(largest_difference(rest.save, options.save), 2 * optimizer.learning_rate * kSteps);
      EXPECT_NEAR(result.steps.back().loss, expected.steps.back().loss, 1e-2);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, ResumedModels,
                         ::testing::Values("dlrm", "gpt", "gpt2", "llama", "resnet", "three_branch",
                                           "two_tower", "two_tower_fixed", "unet"),
                         [](const auto& each) { return std::string(each.param); });

TEST_F(Resume, DataGoOnWithTheNextSampleAlsoInBatchesOfAnotherSize) {
  const LoadedModel model(kFixtures + "gpt.pt2");
  const auto sizes = Program(model.exported, BatchSize(2), at::kCPU).sizes(model.exported.inputs[0].tensor);
  const at::Tensor rows = at::arange(23, at::kLong).view({-1, 1}).expand({-1, sizes[1]}).contiguous();
  const std::string path = in("data.safetensors");
  write_tensors(path, {{"tokens", rows}, {"labels", rows}}, {});
  const auto samples = [](const DataSource& data, std::uint64_t step, std::int64_t batch) {
    std::vector<std::int64_t> numbers;
    for (std::int64_t i = 0; i < batch; ++i)
      numbers.push_back(data.read(step, 0, BatchSize(i), BatchSize(1))[0][0].item<std::int64_t>());
    return numbers;
  };
  const auto whole = open_data(path, model.exported, BatchSize(4), from_the_beginning(3));
  const auto rest = open_data(path, model.exported, BatchSize(4), {7, whole->position(7)});
  EXPECT_EQ(whole->position(7).epoch, 1U);  // five batches an epoch
  for (std::uint64_t step = 7; step < 20; ++step)
    EXPECT_EQ(samples(*rest, step, 4), samples(*whole, step, 4));
  // 8 of 23 are read: 15 are left, which is 7 batches of 2 and one sample that is left out.
  const auto small = open_data(path, model.exported, BatchSize(2), {2, whole->position(2)});
  auto third = samples(*whole, 2, 4);
  const auto first_two = samples(*small, 2, 2), next_two = samples(*small, 3, 2);
  EXPECT_EQ(first_two, std::vector<std::int64_t>(third.begin(), third.begin() + 2));
  EXPECT_EQ(next_two, std::vector<std::int64_t>(third.begin() + 2, third.end()));
  EXPECT_EQ(small->position(8).epoch, 0U);
  EXPECT_EQ(small->position(9).epoch, 1U);
}

TEST_F(Resume, ACheckpointThatDoesNotFitIsRefusedInOneLine) {
  const std::string path = kFixtures + "three_branch.pt2";
  const LoadedModel model(path);
  const PlanFile plan = plan_of(model.graph(), 2, with_everything(OptimizerKind::kAdam), 1);
  run_plan(plan, path, options_of(2, in("checkpoints")));
  const auto resumed = [&](const PlanFile& file, const std::string& of_model) {
    RunOptions options = options_of(3);
    options.resume = in("checkpoints");
    return refusal([&] { run_plan(file, of_model, options); });
  };
  const std::string gpt = kFixtures + "gpt.pt2";
  EXPECT_THAT(resumed(plan_of(LoadedModel(gpt).graph(), 2, plan.training.optimizer, 1), gpt),
              AllOf(HasSubstr("another model"), HasSubstr("'three_branch'")));
  PlanFile sgd = plan;
  sgd.training.optimizer.kind = OptimizerKind::kSgd;
  EXPECT_THAT(resumed(sgd, path), HasSubstr("plan with --optimizer adam"));

  const std::string shard = *find_checkpoint(in("checkpoints")) + "/" + shard_name(0, 1);
  const std::string bytes = read_file(shard);
  std::string flipped = bytes;
  flipped[bytes.size() - 5] = static_cast<char>(flipped[bytes.size() - 5] ^ 1);
  write_file_atomically(shard, flipped);
  EXPECT_THAT(resumed(plan, path), AllOf(HasSubstr("torn"), HasSubstr("is not what was written")));
  write_file_atomically(shard, bytes.substr(0, bytes.size() - 1));
  EXPECT_THAT(resumed(plan, path), AllOf(HasSubstr("torn"), HasSubstr("were written")));
  std::filesystem::remove(shard);
  EXPECT_THAT(resumed(plan, path), HasSubstr("missing"));
}

TEST_F(Resume, OnlyTheNewestStayAndANewTrainingDoesNotMixWithThem) {
  const std::string path = kFixtures + "two_tower.pt2";
  const LoadedModel model(path);
  const PlanFile plan = plan_of(model.graph(), 2, with_everything(OptimizerKind::kAdam), 1);
  RunOptions options = options_of(7, in("checkpoints"));
  options.checkpoints->keep = 2;
  std::vector<std::uint64_t> told;
  options.checkpoints->on_checkpoint = [&](const CheckpointReport& report) { told.push_back(report.step); };
  run_plan(plan, path, options);
  EXPECT_THAT(told, ElementsAre(2, 4, 6, 7));
  std::vector<std::uint64_t> steps;
  for (const CompleteCheckpoint& each : complete_checkpoints(in("checkpoints"))) steps.push_back(each.step);
  EXPECT_THAT(steps, ElementsAre(6, 7));
  EXPECT_THAT(refusal([&] { run_plan(plan, path, options); }),
              AllOf(HasSubstr("holds a checkpoint of step 7"), HasSubstr("--resume")));
  options.resume = in("checkpoints");
  EXPECT_TRUE(run_plan(plan, path, options).steps.empty());  // all seven are done
}

TEST_F(Resume, AnInterruptedRunWritesACheckpointOfItsLastStep) {
  const std::string path = kFixtures + "two_tower.pt2";
  const LoadedModel model(path);
  const PlanFile plan = plan_of(model.graph(), 2, with_everything(OptimizerKind::kAdam), 1);
  RunOptions options = options_of(100, in("checkpoints"));
  std::atomic<bool> stop{false};
  options.stop = &stop;
  options.on_step = [&](const StepReport& step) { stop = step.step == 1; };
  const RunResult result = run_plan(plan, path, options);
  EXPECT_TRUE(result.interrupted);
  ASSERT_TRUE(find_checkpoint(in("checkpoints")));
  EXPECT_EQ(read_manifest(*find_checkpoint(in("checkpoints"))).step, result.steps.size());
  RunOptions rest = options_of(result.steps.size() + 1);
  rest.resume = in("checkpoints");
  EXPECT_THAT(run_plan(plan, path, rest).steps, SizeIs(1));
}

}  // namespace
}  // namespace espalier
