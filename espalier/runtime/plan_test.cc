// Preset tsan compiles this file: its suites run under ThreadSanitizer too.

// Plans over several devices compute what one process computes.

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "espalier/runtime/runs_for_tests.h"
#include "espalier/schedule/order_file.h"
#include "testing/cut_plan.h"
#include "testing/random_orders.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using espalier::testing::bit_equality_due;
using espalier::testing::CutOptions;
using espalier::testing::expect_equal_runs;
using espalier::testing::job_of;
using espalier::testing::plan_from_cuts;
using espalier::testing::plan_from_stages;
using espalier::testing::random_cut_plan;
using espalier::testing::run;
using espalier::testing::TrainedRun;
using ::testing::IsEmpty;

void expect_equal_to_one_process(const std::string& fixture,
                                 const std::function<PipelinePlan(const Graph&)>& make_plan, int devices,
                                 const Optimizer& optimizer = {}) {
  at::set_num_threads(1);
  const LoadedModel model(kFixtures + fixture + ".pt2");
  const PipelinePlan plan = make_plan(model.graph());
  const PlannedJob planned = job_of(model.graph(), cpus(devices), plan, optimizer);
  const PlannedJob single = one_stage_job(model.graph(), plan.batch, plan.stages[0].micro_batch);
  const TrainedRun expected = run(model, single, optimizer, 11, 2);
  const TrainedRun actual = run(model, planned, optimizer, 11, 2);
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
    if (const auto problems = check_schedule(planned.staged, planned.schedule); !problems.empty()) {
      EXPECT_THAT(problems.front(), ::testing::MatchesRegex("(complete|place|order|messages|deadlock): .*"));
      ++refused;
      continue;
    }
    ++ran;
    if (splits(planned.schedule)) ++split;
    const auto expected =
        run(model, one_stage_job(graph, plan.batch, plan.stages[0].micro_batch), optimizer, 11, 2);
    const auto actual = run(model, planned, optimizer, 11, 2);
    EXPECT_THAT(check_trace(planned.staged, cpus(5), planned.schedule, actual.trace), IsEmpty());
    const bool due = is_bit_equality_due(graph, planned);
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

INSTANTIATE_TEST_SUITE_P(Models, Cuts,
                         ::testing::Values("two_tower", "two_tower_fixed", "three_branch", "gpt", "resnet",
                                           "dlrm", "unet", "gpt2", "llama", "spectral", "rotary",
                                           "rotary_f64", "gpt_bf16", "custom", "autocast"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace espalier
