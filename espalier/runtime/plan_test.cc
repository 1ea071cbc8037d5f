// Plans over several devices compute what one process computes.

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "espalier/runtime/comparison.h"
#include "espalier/runtime/executor.h"
#include "espalier/runtime/measured_trace.h"
#include "espalier/runtime/plans_for_tests.h"
#include "espalier/runtime/tensors_for_tests.h"
#include "espalier/runtime/trainer.h"
#include "espalier/runtime/whole_state.h"
#include "espalier/runtime/workers.h"
#include "espalier/schedule/order_file.h"
#include "testing/cut_plan.h"
#include "testing/random_orders.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using espalier::testing::CutOptions;
using espalier::testing::plan_from_cuts;
using espalier::testing::plan_from_stages;
using espalier::testing::random_cut_plan;
using ::testing::IsEmpty;

// What W does not need, by a rule that no cost cell has: every other crossing.
void free_some_after_the_input_half(StagedModel& staged) {
  for (std::size_t c = 0; c < staged.crossings.size(); c += 2) {
    for (Crossing::Reader& reader : staged.crossings[c].readers) reader.for_input_only = reader.saved;
  }
}

PlannedJob job_of(const Graph& graph, const Cluster& cluster, const PipelinePlan& plan,
                  const Optimizer& optimizer) {
  EXPECT_THAT(check_plan(graph, cluster, plan), IsEmpty());
  PlannedJob job;
  job.plan = plan;
  job.staged = staged_for_tests(graph, cluster, plan, optimizer);
  free_some_after_the_input_half(job.staged);
  job.schedule = make_schedule(job.staged, cluster.devices().size());
  EXPECT_THAT(check_schedule(job.staged, job.schedule), IsEmpty());
  for (const auto& device : cluster.devices()) {
    job.device_names.push_back(device.name);
    job.device_memory.push_back(device.memory);
  }
  return job;
}

struct Run {
  std::vector<double> losses;                   // of the steps' micro-batches
  std::map<std::string, at::Tensor> gradients;  // of the last step
  std::map<std::string, at::Tensor> state;      // after it
  Trace trace;                                  // of it
};

Run run(const LoadedModel& model, const PlannedJob& planned, const Optimizer& optimizer, std::uint64_t seed,
        int steps) {
  const auto data = synthetic_data(model.exported, seed);
  Workers workers = join_workers({}, planned, {.timeout = milliseconds(20'000)});
  Trainer trainer(model, planned, *data, *workers.transport,
                  {.optimizer = optimizer, .seed = seed, .executor = {.keep_gradients = true}});
  Run result;
  for (int step = 0; step < steps; ++step) {
    const auto start = Clock::now();
    StepOutcome outcome = trainer.executor().step();
    std::map<std::uint32_t, double> losses(outcome.losses.begin(), outcome.losses.end());
    for (const auto& [j, loss] : losses) result.losses.push_back(loss);
    result.gradients.clear();
    for (const auto& [id, gradient] : outcome.gradients)
      result.gradients[model.graph().parameter(id).names[0]] = gradient;
    result.trace = gather_trace(workers, planned, std::move(outcome), start).value();
  }
  result.state = gather_state(workers, model.graph(), trainer.executor());
  for (auto& [name, value] : result.state) value = value.clone();
  return result;
}

// Nothing crosses to two stages, so each sum over micro-batches has one order: more than verify promises, for
// plans by a rule.
bool bit_equality_due(const StagedModel& staged) {
  for (const StagedStage& stage : staged.stages) {
    if (stage.replicas.size() > 1) return false;
  }
  for (const Crossing& crossing : staged.crossings) {
    if (crossing.readers.size() > 1) return false;
  }
  return staged.ties.empty();
}

void expect_close(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b,
                  double tolerance, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, difference] : relative_differences(a, b)) {
    EXPECT_LE(difference, tolerance) << what << " " << name;
  }
}

void expect_equal(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b,
                  const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, value] : b) {
    EXPECT_TRUE(at::equal(a.at(name), value)) << what << " " << name;
  }
}

// Bits where they are due, else within the tolerance.
void expect_equal_runs(const Graph& graph, bool due, const Run& actual, const Run& expected) {
  if (due) {
    EXPECT_EQ(actual.losses, expected.losses);
    expect_equal(actual.gradients, expected.gradients, "gradient");
    expect_equal(actual.state, expected.state, "state");
    return;
  }
  const double tolerance = default_tolerance(graph);
  EXPECT_EQ(actual.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < std::min(actual.losses.size(), expected.losses.size()); ++i)
    EXPECT_NEAR(actual.losses[i], expected.losses[i], tolerance * std::abs(expected.losses[i]));
  expect_close(actual.gradients, expected.gradients, tolerance, "gradient");
}

void expect_equal_to_one_process(const std::string& fixture,
                                 const std::function<PipelinePlan(const Graph&)>& make_plan, int devices,
                                 const Optimizer& optimizer = {}) {
  at::set_num_threads(1);
  const LoadedModel model(kFixtures + fixture + ".pt2");
  const PipelinePlan plan = make_plan(model.graph());
  const PlannedJob planned = job_of(model.graph(), cpus(devices), plan, optimizer);
  const PlannedJob single = one_stage_job(model.graph(), plan.batch, plan.stages[0].micro_batch);
  const Run expected = run(model, single, optimizer, 11, 2);
  const Run actual = run(model, planned, optimizer, 11, 2);
  EXPECT_THAT(check_trace(planned.staged, cpus(devices), planned.schedule, actual.trace), IsEmpty());
  expect_equal_runs(model.graph(), bit_equality_due(planned.staged), actual, expected);
}

class Cuts : public ::testing::TestWithParam<const char*> {};

TEST_P(Cuts, RandomChainsOfStagesEqualOneProcess) {
  Rng rng(5);
  for (const std::size_t stages : {2, 3, 5}) {
    SCOPED_TRACE(stages);
    expect_equal_to_one_process(
        GetParam(),
        [&](const Graph& graph) {
          const BatchSize size = graph.batch().fixed() ? graph.batch().min : BatchSize(2);
          return random_cut_plan(graph, stages, {.batch = size * 4, .micro_batch = size}, rng);
        },
        static_cast<int>(stages));
  }
}

TEST_P(Cuts, StagesThatRecomputeEqualOneProcess) {
  Rng rng(6);
  expect_equal_to_one_process(
      GetParam(),
      [&](const Graph& graph) {
        const BatchSize size = graph.batch().fixed() ? graph.batch().min : BatchSize(2);
        return random_cut_plan(graph, 2, {.batch = size * 3, .micro_batch = size, .recompute = true}, rng);
      },
      2);
}

TEST_P(Cuts, SeveralStagesOnOneDeviceEqualOneProcess) {
  Rng rng(7);
  expect_equal_to_one_process(
      GetParam(),
      [&](const Graph& graph) {
        const BatchSize size = graph.batch().fixed() ? graph.batch().min : BatchSize(2);
        return random_cut_plan(graph, 4,
                               {.batch = size * 4,
                                .micro_batch = size,
                                .schedule = ScheduleKind::kGPipe,
                                .devices = {{DeviceId(0)}, {DeviceId(1)}, {DeviceId(0)}, {DeviceId(1)}},
                                .chain = true},
                               rng);
      },
      2);
}

TEST_P(Cuts, ReplicasThatShareMicroBatchesEqualOneProcess) {
  Rng rng(8);
  expect_equal_to_one_process(
      GetParam(),
      [&](const Graph& graph) {
        const BatchSize size = graph.batch().fixed() ? graph.batch().min : BatchSize(2);
        return random_cut_plan(
            graph, 2,
            {.batch = size * 5,
             .micro_batch = size,
             .devices = {{DeviceId(0), DeviceId(1), DeviceId(2)}, {DeviceId(3), DeviceId(4)}}},
            rng);
      },
      5, {.kind = OptimizerKind::kSgd, .learning_rate = 1e-2, .momentum = 0.9});
}

bool splits(const Schedule& schedule) {
  return std::any_of(schedule.devices.begin(), schedule.devices.end(), [](const std::vector<Action>& list) {
    return std::any_of(list.begin(), list.end(),
                       [](const Action& action) { return action.kind == ActionKind::kInputGradient; });
  });
}

TEST_P(Cuts, BackwardInTwoHalvesEqualsOneProcess) {
  Rng rng(12);
  for (const char* rule : {"1f1b,split", "gpipe,split"}) {
    SCOPED_TRACE(rule);
    expect_equal_to_one_process(
        GetParam(),
        [&](const Graph& graph) {
          const BatchSize size = graph.batch().fixed() ? graph.batch().min : BatchSize(2);
          return random_cut_plan(
              graph, 3, {.batch = size * 4, .micro_batch = size, .schedule = parse_order_rule(rule)}, rng);
        },
        3);
  }
}

TEST_P(Cuts, RecomputedStagesOnSharedDevicesEqualOneProcessInTwoHalves) {
  Rng rng(13);
  expect_equal_to_one_process(
      GetParam(),
      [&](const Graph& graph) {
        const BatchSize size = graph.batch().fixed() ? graph.batch().min : BatchSize(2);
        return random_cut_plan(graph, 4,
                               {.batch = size * 4,
                                .micro_batch = size,
                                .schedule = parse_order_rule("1f1b,split"),
                                .devices = {{DeviceId(0)}, {DeviceId(1)}, {DeviceId(0)}, {DeviceId(1)}},
                                .recompute = true,
                                .chain = true},
                               rng);
      },
      2);
}

TEST_P(Cuts, ReplicasInTwoHalvesEqualOneProcess) {
  Rng rng(14);
  expect_equal_to_one_process(
      GetParam(),
      [&](const Graph& graph) {
        const BatchSize size = graph.batch().fixed() ? graph.batch().min : BatchSize(2);
        return random_cut_plan(graph, 2,
                               {.batch = size * 5,
                                .micro_batch = size,
                                .schedule = parse_order_rule("1f1b,split"),
                                .devices = {{DeviceId(0), DeviceId(1)}, {DeviceId(2)}}},
                               rng);
      },
      3, {.kind = OptimizerKind::kSgd, .learning_rate = 1e-2, .momentum = 0.9});
}

// Lists that a random run made, and mutations of them: those that check_schedule refuses do not run, the
// others compute what one process computes.
TEST(Orders, AnyLegalListsEqualOneProcess) {
  at::set_num_threads(1);
  // Cuts of the first make sums whose order depends on the plan; most of the second do not.
  const LoadedModel branches(kFixtures + "three_branch.pt2"), chain(kFixtures + "dlrm.pt2");
  int ran = 0, refused = 0, to_the_bit = 0, split = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const LoadedModel& model = seed % 2 == 0 ? branches : chain;
    const Graph& graph = model.graph();
    const bool shared = seed % 3 == 1, replicas = seed % 3 == 2;
    std::vector<std::vector<DeviceId>> devices{{DeviceId(0)}, {DeviceId(1)}, {DeviceId(2)}, {DeviceId(1)}};
    if (!shared) devices[3] = {DeviceId(3)};
    if (replicas) devices[0] = {DeviceId(0), DeviceId(4)};
    const PipelinePlan plan = random_cut_plan(
        graph, 4,
        {.batch = BatchSize(8), .micro_batch = BatchSize(2), .devices = devices, .recompute = seed % 5 == 0},
        rng);
    const Optimizer optimizer;
    PlannedJob planned = job_of(graph, cpus(5), plan, optimizer);
    OrderLists lists = espalier::testing::random_orders(
        rng, planned.staged, 5,
        {.split = seed % 7 < 4, .early_ends = seed % 4 < 2, .depth_first = seed % 5 < 2});
    for (std::uint64_t n = rng.below(3); n > 0; --n)
      espalier::testing::mutate_orders(rng, planned.staged, lists);
    planned.staged = with_orders(planned.staged, Orders(lists));
    planned.schedule = make_schedule(planned.staged, 5);
    if (!check_schedule(planned.staged, planned.schedule).empty()) {
      ++refused;
      continue;
    }
    ++ran;
    if (splits(planned.schedule)) ++split;
    const auto expected =
        run(model, one_stage_job(graph, plan.batch, plan.stages[0].micro_batch), optimizer, 11, 2);
    const auto actual = run(model, planned, optimizer, 11, 2);
    EXPECT_THAT(check_trace(planned.staged, cpus(5), planned.schedule, actual.trace), IsEmpty());
    const bool due = is_bit_equality_due(graph, plan, planned.schedule);
    expect_equal_runs(graph, due, actual, expected);
    if (due) ++to_the_bit;
  }
  EXPECT_GE(ran, 10);
  EXPECT_GE(split, 10);
  EXPECT_GE(to_the_bit, 3);
  EXPECT_GE(refused, 2);
}

TEST(Orders, GroupsOfBackwardsEqualOneProcess) {
  Rng rng(9);
  const LoadedModel model(kFixtures + "three_branch.pt2");
  const PipelinePlan plan =
      random_cut_plan(model.graph(), 3, {.batch = BatchSize(12), .micro_batch = BatchSize(2)}, rng);
  PlannedJob planned = job_of(model.graph(), cpus(3), plan, {});
  planned.staged = with_orders(planned.staged, parse_order_rule("1f1b,k=2"));
  planned.schedule = make_schedule(planned.staged, 3);
  EXPECT_THAT(check_schedule(planned.staged, planned.schedule), IsEmpty());
  const auto expected = run(model, one_stage_job(model.graph(), plan.batch, BatchSize(2)), {}, 11, 2);
  EXPECT_EQ(run(model, planned, {}, 11, 2).losses.size(), expected.losses.size());
  const auto actual = run(model, planned, {}, 11, 2);
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(actual.losses[i], expected.losses[i], 1e-5 * std::abs(expected.losses[i]));
  }
}

TEST(Orders, WhatTheRuntimeCannotRunIsRefusedInOneLine) {
  Rng rng(9);
  const LoadedModel model(kFixtures + "three_branch.pt2");
  const PipelinePlan plan =
      random_cut_plan(model.graph(), 2, {.batch = BatchSize(4), .micro_batch = BatchSize(2)}, rng);
  const PlannedJob planned = job_of(model.graph(), cpus(3), plan, {});
  const auto refused = [&](const auto& change) {
    StagedModel staged = planned.staged;
    change(staged);
    return espalier::testing::refusal([&] { require_runnable(staged); });
  };
  EXPECT_EQ(refused([](StagedModel&) {}), "(nothing was refused)");
  EXPECT_THAT(refused([](StagedModel& m) { m.stages[1].replicas[0].devices.push_back(DeviceId(2)); }),
              ::testing::HasSubstr("tensor-parallel group"));
}

// Stages of random sizes: 2, 4 or 8 samples.
void resize(PipelinePlan& plan, Rng& rng) {
  for (Stage& stage : plan.stages) {
    stage.micro_batch = BatchSize(std::int64_t{2} << rng.below(3));
    const auto count = static_cast<std::uint32_t>(plan.batch.count() / stage.micro_batch.count());
    for (std::size_t r = 0; r < stage.replicas.size(); ++r) {
      stage.replicas[r].micro_batches = round_robin(count, r, stage.replicas.size());
    }
  }
  const std::vector<std::uint32_t> limits = in_flight_limits(plan);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) plan.stages[s].in_flight = limits[s];
}

TEST(Pieces, StagesWithMicroBatchesOfDifferentSizesEqualOneProcess) {
  at::set_num_threads(1);
  int unequal = 0;
  const Cluster cluster = cpus(4);
  for (const char* fixture : {"dlrm", "spectral", "rotary_f64"}) {
    const LoadedModel model(kFixtures + fixture + ".pt2");
    const Graph& graph = model.graph();
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      SCOPED_TRACE(std::string(fixture) + " " + std::to_string(seed));
      Rng rng(seed);
      std::vector<std::vector<DeviceId>> devices{{DeviceId(0)}, {DeviceId(1)}, {DeviceId(2)}};
      if (seed % 4 == 1) devices[2] = {DeviceId(0)};
      if (seed % 4 == 2) devices[1] = {DeviceId(1), DeviceId(3)};
      if (seed % 4 == 3) devices = {{DeviceId(0)}, {DeviceId(1), DeviceId(2)}, {DeviceId(1), DeviceId(0)}};
      PipelinePlan plan =
          random_cut_plan(graph, 3,
                          {.batch = BatchSize(16),
                           .micro_batch = BatchSize(2),
                           .schedule = parse_order_rule(seed % 3 == 0 ? "1f1b,split" : "1f1b"),
                           .devices = devices,
                           .recompute = seed % 5 == 4,
                           .chain = seed % 2 == 0},
                          rng);
      resize(plan, rng);
      PlannedJob planned;
      planned.plan = plan;
      planned.staged = staged_for_tests(graph, cluster, plan, {});
      planned.schedule = make_schedule(planned.staged, 4);
      if (!check_schedule(planned.staged, planned.schedule).empty())
        continue;  // limits that wait in a circle
      for (const Device& device : cluster.devices()) {
        planned.device_names.push_back(device.name);
        planned.device_memory.push_back(device.memory);
      }
      if (espalier::testing::refusal([&] { require_cuttable(graph, plan, planned.staged); }) !=
          "(nothing was refused)") {
        continue;  // its cut has a crossing without a batch
      }
      const BatchSize size = plan.stages[loss_stage(graph, plan).index()].micro_batch;
      const auto expected = run(model, one_stage_job(graph, plan.batch, size), {}, 11, 2);
      const auto actual = run(model, planned, {}, 11, 2);
      EXPECT_THAT(check_trace(planned.staged, cluster, planned.schedule, actual.trace), IsEmpty());
      expect_equal_runs(graph, is_bit_equality_due(graph, plan, planned.schedule), actual, expected);
      const bool one_size = std::all_of(plan.stages.begin(), plan.stages.end(), [&](const Stage& stage) {
        return stage.micro_batch == plan.stages[0].micro_batch;
      });
      unequal += one_size ? 0 : 1;
    }
  }
  EXPECT_GE(unequal, 15);
}

TEST(Pieces, ModelsThatCannotBeCutAreRefusedInOneLine) {
  const auto refused = [](const char* fixture, std::int64_t first, std::int64_t second) {
    const LoadedModel model(kFixtures + fixture + ".pt2");
    Rng rng(3);
    PipelinePlan plan =
        random_cut_plan(model.graph(), 2, {.batch = BatchSize(8), .micro_batch = BatchSize(first)}, rng);
    const StagedModel staged = staged_for_tests(model.graph(), cpus(2), plan, {});
    plan.stages[1].micro_batch = BatchSize(second);
    return espalier::testing::refusal([&] { require_cuttable(model.graph(), plan, staged); });
  };
  EXPECT_EQ(refused("resnet", 2, 2), "(nothing was refused)");
  EXPECT_THAT(refused("resnet", 2, 4), ::testing::HasSubstr("have micro-batches of 2 and 4, but operator '"));
  EXPECT_THAT(refused("two_tower_fixed", 4, 2), ::testing::HasSubstr("exported for a batch of"));
  const Tensor merged{.name = "t", .sizes = {SizeExpr(6) * SizeExpr::batch(), SizeExpr(4)}};
  EXPECT_EQ(sample_dimension(merged), std::nullopt);
  const Tensor second{.name = "t", .sizes = {SizeExpr(6), SizeExpr::batch()}};
  EXPECT_EQ(sample_dimension(second), std::optional<std::size_t>(1));
}

INSTANTIATE_TEST_SUITE_P(Models, Cuts,
                         ::testing::Values("two_tower", "two_tower_fixed", "three_branch", "gpt", "resnet",
                                           "dlrm", "unet", "gpt2", "llama", "spectral", "rotary",
                                           "rotary_f64", "gpt_bf16", "custom", "autocast"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace espalier
