// Stages with micro-batches of different sizes compute what one process computes.

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "espalier/runtime/runs_for_tests.h"
#include "espalier/schedule/order_file.h"
#include "testing/cut_plan.h"
#include "testing/random_orders.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using espalier::testing::expect_equal_runs;
using espalier::testing::mutate_orders;
using espalier::testing::random_cut_plan;
using espalier::testing::random_orders;
using espalier::testing::run;
using ::testing::IsEmpty;

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
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
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
      if (seed >= 12) {  // lists that a random run made, and small changes of them
        OrderLists lists = random_orders(rng, planned.staged, 4, {.split = seed % 3 > 0});
        if (seed % 2 == 0) mutate_orders(rng, planned.staged, lists);
        planned.staged = with_orders(planned.staged, Orders(lists));
      }
      planned.schedule = make_schedule(planned.staged, 4);
      if (!check_schedule(planned.staged, planned.schedule).empty()) continue;  // it waits in a circle
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
      expect_equal_runs(graph, is_bit_equality_due(graph, planned), actual, expected);
      const bool one_size = std::all_of(plan.stages.begin(), plan.stages.end(), [&](const Stage& stage) {
        return stage.micro_batch == plan.stages[0].micro_batch;
      });
      unequal += one_size ? 0 : 1;
    }
  }
  EXPECT_GE(unequal, 20);
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

}  // namespace
}  // namespace espalier
