// Every example model trained by every shape of plan and placement, in real processes, is what one process
// trains: the command `espalier verify --steps 3` with Adam, random operators and BatchNorm as the models
// were exported.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "espalier/app/placements.h"
#include "espalier/app/planning.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/schedule/schedule.h"
#include "testing/cut_plan.h"
#include "testing/random_placements.h"

namespace espalier {
namespace {

using espalier::testing::contiguous_placement;
using espalier::testing::CutOptions;
using espalier::testing::interleaved_placement;
using espalier::testing::plan_from_cuts;
using espalier::testing::plan_from_stages;
using espalier::testing::random_placement;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

enum class Shape : std::uint8_t {
  kChain,       // three stages, one after the other, 1F1B
  kGraph,       // two branches side by side, what stands before them and what comes after; or a skip edge
  kReplicated,  // two stages on two devices each: a replica takes three micro-batches, the other two
  kUneven,      // three stages of an eighth, a half and the rest; GPipe, recomputed, two devices in a process
  kHalves,      // a chain, backward in two halves
  kLateHalves,  // the same by lists that have all weight halves at their end
  kShared,      // two devices with two stages each in turn, in two halves, recomputed
  kReplicatedHalves,      // two stages on two devices and one, in two halves
  kSizes,                 // three stages with micro-batches of four, two and eight samples
  kPlacedOnOne,           // a placement of all operators on one device, in one micro-batch
  kPlacedHalves,          // … of two runs of operators
  kPlacedAtRandom,        // … of any operator on any of three devices
  kPlacedInTurn,          // … of each operator on another of four devices than the one before it
  kPlacedInMicroBatches,  // … of any operator on any of three devices, in four micro-batches
};

struct Model {
  const char* name;
  const char* why;
};

const std::vector<Model> kModels{
    {"two_tower", "a loss over all pairs of a micro-batch"},
    {"three_branch", "three branches that meet, dropout"},
    {"gpt", "embedding and head tied over stages, dropout"},
    {"resnet", "BatchNorm, in-place additions, skip connections"},
    {"dlrm", "embedding tables"},
    {"unet", "the way up reads from every stage of the way down"},
    {"gpt2", "from the transformers package, tied, dropout"},
    {"llama", "from the transformers package, a sub-graph without gradients"},
};

struct Case {
  Model model;
  Shape shape;
};

std::string shape_name(Shape shape) {
  return std::array{"chain",          "graph",
                    "replicated",     "uneven",
                    "halves",         "late_halves",
                    "shared",         "replicated_halves",
                    "sizes",          "placed_on_one",
                    "placed_halves",  "placed_at_random",
                    "placed_in_turn", "placed_in_micro_batches"}
      .at(static_cast<std::size_t>(shape));
}

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model.name << ": " << c.model.why << "; " << shape_name(c.shape);
}

struct Layout {
  int devices = 2;
  int workers = 0;  // 0: one for each device
  std::int64_t micro_batches = 4;
  std::int64_t micro_batch = 2;  // the least that exports with a dynamic batch take
  Orders orders = ScheduleKind::kOneFOneB;
};

Layout layout_of(Shape shape) {
  switch (shape) {
    case Shape::kChain:
      return {.devices = 3};
    case Shape::kGraph:
      return {.devices = 4};
    case Shape::kReplicated:
      return {.devices = 4, .micro_batches = 5};
    case Shape::kUneven:
      return {.devices = 3, .workers = 2, .orders = ScheduleKind::kGPipe};
    case Shape::kHalves:
    case Shape::kLateHalves:
      return {.devices = 3, .orders = parse_order_rule("1f1b,split")};
    case Shape::kShared:
      return {.devices = 2, .orders = parse_order_rule("gpipe,split")};
    case Shape::kReplicatedHalves:
      return {.devices = 3, .micro_batches = 5, .orders = parse_order_rule("1f1b,split")};
    case Shape::kSizes:
      return {.devices = 3, .micro_batches = 8};
    case Shape::kPlacedOnOne:
      return {.devices = 1, .micro_batches = 1, .micro_batch = 8};
    case Shape::kPlacedHalves:
      return {.devices = 2, .micro_batches = 1, .micro_batch = 8};
    case Shape::kPlacedAtRandom:
      return {.devices = 3, .micro_batches = 1, .micro_batch = 8};
    case Shape::kPlacedInTurn:
      return {.devices = 4, .micro_batches = 1, .micro_batch = 8};
    case Shape::kPlacedInMicroBatches:
      return {.devices = 3};
  }
  return {};
}

PlanningJob job_of(const Case& c, const std::string& model) {
  const Layout layout = layout_of(c.shape);
  const BatchSize micro_batch(layout.micro_batch);
  JobOptions options;
  options.model = model;
  options.cluster = "local:" + std::to_string(layout.devices);
  options.machine.local = {.devices = layout.devices,
                           .memory_each = gibibytes(4),
                           .flops_f32_each = 1e11,
                           .memory_bandwidth_each = 10'000'000'000};
  options.batch = micro_batch * layout.micro_batches;
  options.micro_batches = {micro_batch};
  options.optimizer.kind = OptimizerKind::kAdam;
  options.seed = 17;
  return prepare_job(options);
}

// An operator and all that it needs.
std::vector<bool> cone(const Graph& graph, OperatorId top) {
  std::vector<bool> in(graph.operators().size(), false);
  in[top.index()] = true;
  for (std::size_t i = top.index() + 1; i-- > 0;) {
    if (!in[i]) continue;
    for (const OperatorId before : graph.predecessors(OperatorId(i))) in[before.index()] = true;
  }
  return in;
}

// What two operators that meet in a third need in common, what only one of them needs, and the rest; of all
// such pairs the one whose smaller branch is the largest.
PipelinePlan branch_plan(const PlanningJob& job, const CutOptions& options) {
  std::optional<PipelinePlan> best;
  std::size_t most = 0;
  const auto try_pair = [&](OperatorId left, OperatorId right) {
    const std::vector<bool> a = cone(job.graph, left), b = cone(job.graph, right);
    std::vector<std::size_t> stage_of;
    std::array<std::size_t, 4> members{};
    for (std::size_t i = 0; i < a.size(); ++i) {
      stage_of.push_back(a[i] && b[i] ? 0 : a[i] ? 1 : b[i] ? 2 : 3);
      if (!job.graph.operators()[i].duplicable) ++members[stage_of.back()];
    }
    const std::size_t smaller = std::min(members[1], members[2]);
    if (smaller <= most) return;
    if (members[0] == 0) {
      for (std::size_t& stage : stage_of) stage -= stage > 0 ? 1 : 0;
    }
    const PipelinePlan plan = plan_from_stages(job.graph, stage_of, options);
    if (!check_plan(job.graph, job.cluster, plan).empty()) return;
    best = plan;
    most = smaller;
  };
  for (std::size_t i = 0; i < job.graph.operators().size(); ++i) {
    const auto meeting = job.graph.predecessors(OperatorId(i));
    for (const OperatorId left : meeting) {
      for (const OperatorId right : meeting) {
        if (left < right) try_pair(left, right);
      }
    }
  }
  if (best) return *best;
  // No branches: three stages of which the last reads from both before it.
  const std::size_t count = job.graph.operators().size();
  return plan_from_cuts(job.graph, {count / 4, count * 3 / 5}, options);
}

// Its stages with micro-batches of these sizes.
PipelinePlan with_sizes(PipelinePlan plan, const std::vector<std::int64_t>& sizes) {
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    Stage& stage = plan.stages[s];
    stage.micro_batch = BatchSize(sizes.at(s));
    stage.replicas.at(0).micro_batches = round_robin(plan.micro_batches(StageId(s)), 0, 1);
  }
  const std::vector<std::uint32_t> limits = in_flight_limits(plan);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) plan.stages[s].in_flight = limits[s];
  return plan;
}

PipelinePlan plan_of(const Case& c, const PlanningJob& job) {
  const auto operators = static_cast<double>(job.graph.operators().size());
  const auto at = [&](double part) { return static_cast<std::size_t>(part * operators); };
  CutOptions options{.batch = job.training.batch,
                     .micro_batch = job.training.micro_batches[0],
                     .schedule = layout_of(c.shape).orders};
  switch (c.shape) {
    case Shape::kChain:
    case Shape::kHalves:
    case Shape::kLateHalves:
      options.chain = true;
      return plan_from_cuts(job.graph, {at(1.0 / 3), at(2.0 / 3)}, options);
    case Shape::kGraph:
      return branch_plan(job, options);
    case Shape::kReplicated:
      options.devices = {{DeviceId(0), DeviceId(1)}, {DeviceId(2), DeviceId(3)}};
      return plan_from_cuts(job.graph, {at(0.5)}, options);
    case Shape::kUneven:
      options.recompute = true;
      return plan_from_cuts(job.graph, {at(0.125), at(0.625)}, options);
    case Shape::kShared:
      options.recompute = options.chain = true;
      options.devices = {{DeviceId(0)}, {DeviceId(1)}, {DeviceId(0)}, {DeviceId(1)}};
      return plan_from_cuts(job.graph, {at(0.25), at(0.5), at(0.75)}, options);
    case Shape::kReplicatedHalves:
      options.devices = {{DeviceId(0), DeviceId(1)}, {DeviceId(2)}};
      return plan_from_cuts(job.graph, {at(0.5)}, options);
    case Shape::kSizes:
      return with_sizes(plan_from_cuts(job.graph, {at(1.0 / 3), at(2.0 / 3)}, options), {4, 2, 8});
    case Shape::kPlacedOnOne:
    case Shape::kPlacedHalves:
    case Shape::kPlacedAtRandom:
    case Shape::kPlacedInTurn:
    case Shape::kPlacedInMicroBatches:
      break;  // placement_of
  }
  return {};
}

std::optional<Placement> placement_of(const Case& c, const PlanningJob& job) {
  Rng rng(23);
  switch (c.shape) {
    case Shape::kPlacedOnOne:
    case Shape::kPlacedHalves:
      return contiguous_placement(job.graph, job.cluster);
    case Shape::kPlacedAtRandom:
    case Shape::kPlacedInMicroBatches:
      return random_placement(rng, job.graph, job.cluster);
    case Shape::kPlacedInTurn:
      return interleaved_placement(job.graph, job.cluster);
    default:
      return std::nullopt;
  }
}

// Two stages that need not wait for each other.
bool has_branches(const PipelinePlan& plan) {
  for (std::size_t s = 1; s < plan.stages.size(); ++s) {
    const auto& after = plan.stages[s].after;
    if (std::find(after.begin(), after.end(), StageId(s - 1)) == after.end()) return true;
  }
  return false;
}

// What the shape promises.
void expect_shape(const Case& c, const PipelinePlan& plan) {
  std::vector<std::size_t> shares;
  for (const Replica& replica : plan.stages.front().replicas) shares.push_back(replica.micro_batches.size());
  switch (c.shape) {
    case Shape::kChain:
    case Shape::kUneven:
    case Shape::kHalves:
    case Shape::kLateHalves:
    case Shape::kSizes:
      EXPECT_EQ(plan.stages.size(), 3U);
      break;
    case Shape::kShared:
      EXPECT_EQ(plan.stages.size(), 4U);
      break;
    case Shape::kGraph:
      if (!has_branches(plan)) {
        EXPECT_THAT(plan.stages.at(2).after, ElementsAre(StageId(0), StageId(1)));
      }
      break;
    case Shape::kReplicated:
    case Shape::kReplicatedHalves:
      EXPECT_EQ(plan.stages.size(), 2U);
      EXPECT_THAT(shares, ElementsAre(3, 2));
      break;
    default:
      break;
  }
}

// The lists of the plan's rule, each with its weight halves behind all else of a micro-batch.
OrderLists with_late_weights(const PlanningJob& job, const PipelinePlan& plan) {
  const StagedModel& staged = judge(job, plan).staged;
  OrderLists lists = lists_of(staged, make_schedule(staged, job.cluster.devices().size()));
  for (std::vector<Step>& list : lists) {
    std::stable_partition(list.begin(), list.end(),
                          [](const Step& step) { return step.kind != ActionKind::kWeightGradient; });
  }
  return lists;
}

// The plan, or the placement, as `espalier plan` would write it.
Planned planned_of(const Case& c, const PlanningJob& job) {
  if (const auto placement = placement_of(c, job)) {
    EXPECT_THAT(check_placement(job.graph, job.cluster, *placement), IsEmpty());
    Planned planned = plan_placement(job, *placement, {});
    EXPECT_THAT(check_fragments(job.graph, job.cluster, *placement, planned.judged->plan), IsEmpty());
    return planned;
  }
  PipelinePlan plan = plan_of(c, job);
  if (c.shape == Shape::kLateHalves) plan.orders = Orders(with_late_weights(job, plan));
  EXPECT_THAT(check_plan(job.graph, job.cluster, plan), IsEmpty());
  expect_shape(c, plan);
  return {.planner = "by hand", .outcome = {}, .judged = judge(job, plan), .shortage = {}, .warnings = {}};
}

struct Verdict {
  int exit_code = -1;
  std::string text;
};

Verdict verify(const std::string& plan, int workers) {
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) ::unsetenv(name);
  std::string command = std::string("'") + ESPALIER_BINARY + "' verify '" + plan + "' --steps 3 --json";
  if (workers > 0) command += " --workers " + std::to_string(workers);
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  Verdict verdict;
  std::array<char, 4096> piece{};
  while (const std::size_t length = std::fread(piece.data(), 1, piece.size(), pipe)) {
    verdict.text.append(piece.data(), length);
  }
  const int status = ::pclose(pipe);
  verdict.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return verdict;
}

class Matrix : public ::testing::TestWithParam<Case> {};

TEST_P(Matrix, ThreeStepsEqualOneProcess) {
  const Case& c = GetParam();
  const std::string folder = ::testing::TempDir() + "/espalier_verify_" + std::to_string(::getpid());
  std::filesystem::create_directories(folder);
  const std::unique_ptr<const std::string, void (*)(const std::string*)> cleaner(
      &folder, [](const std::string* path) { std::filesystem::remove_all(*path); });

  const PlanningJob job =
      job_of(c, std::string(ESPALIER_SOURCE_DIR) + "/tests/fixtures/" + c.model.name + ".pt2");
  const Planned planned = planned_of(c, job);
  ASSERT_TRUE(planned.judged.has_value());
  write_file_atomically(folder + "/plan.json", print_plan_file(plan_file(job, planned, folder)));

  const Verdict verdict = verify(folder + "/plan.json", layout_of(c.shape).workers);
  ASSERT_EQ(verdict.exit_code, 0) << verdict.text;
  const Json found = parse_json(verdict.text, "verify");
  EXPECT_TRUE(found.at("equal").get<bool>()) << verdict.text;
  if (found.at("bit_equality_due").get<bool>()) {
    EXPECT_TRUE(found.at("bit_equal").get<bool>());
  }
  std::size_t trainable = 0, buffers = 0;
  for (const Parameter& parameter : job.graph.parameters()) {
    (parameter.trainable ? trainable : buffers) += parameter.trainable || parameter.persistent ? 1 : 0;
  }
  EXPECT_EQ(found.at("gradients").get<std::size_t>(), trainable);
  if (c.shape != Shape::kReplicated &&
      c.shape != Shape::kReplicatedHalves) {  // a replica sees its own share of the batch statistics
    EXPECT_EQ(found.at("buffers").get<std::size_t>(), buffers);
  }
  EXPECT_GT(found.at("parameters").get<std::size_t>(), 0U);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Model& model : kModels) {
    for (const Shape shape :
         {Shape::kChain, Shape::kGraph, Shape::kReplicated, Shape::kUneven, Shape::kHalves,
          Shape::kPlacedOnOne, Shape::kPlacedHalves, Shape::kPlacedAtRandom, Shape::kPlacedInTurn}) {
      all.push_back({model, shape});
    }
  }
  all.push_back({kModels[4], Shape::kSizes});     // dlrm
  for (const std::size_t model : {1, 2, 3, 5}) {  // three_branch, gpt, resnet, unet
    for (const Shape shape :
         {Shape::kLateHalves, Shape::kShared, Shape::kReplicatedHalves, Shape::kPlacedInMicroBatches}) {
      all.push_back({kModels[model], shape});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models, Matrix, ::testing::ValuesIn(cases()), [](const auto& param) {
  return std::string(param.param.model.name) + "_" + shape_name(param.param.shape);
});

}  // namespace
}  // namespace espalier
