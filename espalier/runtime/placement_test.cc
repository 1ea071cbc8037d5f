// Placements over several devices compute what one process computes: the fragments of a device share one copy
// of each parameter and buffer.

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "espalier/runtime/runs_for_tests.h"
#include "espalier/schedule/order_file.h"
#include "testing/random_orders.h"
#include "testing/random_placements.h"

namespace espalier {
namespace {

using espalier::testing::contiguous_placement;
using espalier::testing::expect_equal_runs;
using espalier::testing::interleaved_placement;
using espalier::testing::placed_job_of;
using espalier::testing::random_placement;
using espalier::testing::run;
using ::testing::IsEmpty;

enum class MicroBatches : std::uint8_t { kOne, kThree };

// Of a model whose exports may have a fixed batch.
struct Sizes {
  BatchSize batch;
  FragmentOptions options;
};
Sizes sizes_of(const Graph& graph, MicroBatches count) {
  const BatchSize least = graph.batch().fixed() ? graph.batch().min : BatchSize(2);
  if (count == MicroBatches::kThree) return {least * 3, {.micro_batch = least, .orders = {}}};
  return {graph.batch().fixed() ? least : BatchSize(6), {}};
}

void expect_equal_to_one_process(const LoadedModel& model, const Cluster& cluster,
                                 const PlannedJob& planned) {
  ASSERT_THAT(check_schedule(planned.staged, planned.schedule), IsEmpty());
  EXPECT_THAT(check_fragment_orders(planned.staged, cluster), IsEmpty());
  const PlannedJob single =
      one_stage_job(model.graph(), planned.plan.batch, planned.plan.stages[0].micro_batch);
  const auto expected = run(model, single, {}, 11, 2), actual = run(model, planned, {}, 11, 2);
  EXPECT_THAT(check_trace(planned.staged, cluster, planned.schedule, actual.trace), IsEmpty());
  expect_equal_runs(model.graph(), is_bit_equality_due(model.graph(), planned), actual, expected);
}

class PlacementsOf : public ::testing::TestWithParam<const char*> {
 protected:
  void expect_equal(const Cluster& cluster, const Placement& placement, MicroBatches count) {
    const Sizes sizes = sizes_of(model_.graph(), count);
    expect_equal_to_one_process(
        model_, cluster, placed_job_of(model_.graph(), cluster, placement, sizes.batch, sizes.options));
  }
  void SetUp() override { at::set_num_threads(1); }

  const LoadedModel model_{kFixtures + GetParam() + ".pt2"};
};

TEST_P(PlacementsOf, OnOneDeviceEqualOneProcess) {
  const Placement placement = contiguous_placement(model_.graph(), cpus(1));
  for (const MicroBatches count : {MicroBatches::kOne, MicroBatches::kThree}) {
    expect_equal(cpus(1), placement, count);
  }
}

TEST_P(PlacementsOf, InRunsEqualOneProcess) {
  const Cluster cluster = cpus(3);
  expect_equal(cluster, contiguous_placement(model_.graph(), cluster), MicroBatches::kThree);
}

TEST_P(PlacementsOf, OfEveryOtherOperatorEqualOneProcess) {
  for (const int devices : {2, 3}) {
    const Cluster cluster = cpus(devices);
    expect_equal(cluster, interleaved_placement(model_.graph(), cluster), MicroBatches::kOne);
  }
}

TEST_P(PlacementsOf, AtRandomEqualOneProcess) {
  Rng rng(19);
  for (int i = 0; i < 4; ++i) {
    SCOPED_TRACE(i);
    const Cluster cluster = cpus(2 + i % 2);
    Placement placement = random_placement(rng, model_.graph(), cluster);
    if (i % 2 == 1)
      placement = espalier::testing::with_random_levels(rng, model_.graph(), std::move(placement));
    expect_equal(cluster, placement, i < 2 ? MicroBatches::kOne : MicroBatches::kThree);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PlacementsOf,
                         ::testing::Values("two_tower", "two_tower_fixed", "three_branch", "gpt", "resnet",
                                           "dlrm", "unet", "gpt2", "llama", "spectral", "rotary",
                                           "rotary_f64", "gpt_bf16", "custom", "autocast"),
                         [](const auto& param) { return std::string(param.param); });

// Lists that a random run made; backward in two halves where a fragment has weights.
TEST(PlacementOrders, AnyLegalListsEqualOneProcess) {
  at::set_num_threads(1);
  const LoadedModel model(kFixtures + "three_branch.pt2");
  int ran = 0;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const Cluster cluster = cpus(3);
    PlannedJob planned = placed_job_of(model.graph(), cluster, random_placement(rng, model.graph(), cluster),
                                       BatchSize(6), {.micro_batch = BatchSize(2), .orders = {}});
    const OrderLists lists = espalier::testing::random_orders(rng, planned.staged, 3,
                                                              {.split = seed % 2 == 0, .early_ends = false});
    planned.staged = with_orders(planned.staged, Orders(lists));
    planned.schedule = make_schedule(planned.staged, 3);
    if (!check_schedule(planned.staged, planned.schedule).empty()) continue;  // a deadlock for want of slots
    expect_equal_to_one_process(model, cluster, planned);
    ++ran;
  }
  EXPECT_GE(ran, 4);
}

// The embedding's weight is the head's as well; between them stands the rest, on another device.
PlannedJob ends_on_one_device(const Graph& graph, MicroBatches count) {
  Placement placement;
  for (const Operator& op : graph.operators()) {
    placement.device.push_back(DeviceId(op.module_path.rfind("blocks", 0) == 0 ? 1 : 0));
  }
  const Sizes sizes = sizes_of(graph, count);
  return placed_job_of(graph, cpus(2), placement, sizes.batch, sizes.options);
}

TEST(SharedCopies, AWeightThatTwoFragmentsOfADeviceReadIsEqualToTheBit) {
  const LoadedModel model(kFixtures + "gpt.pt2");
  const PlannedJob planned = ends_on_one_device(model.graph(), MicroBatches::kOne);
  EXPECT_THAT(planned.staged.ties, IsEmpty());
  EXPECT_TRUE(is_bit_equality_due(model.graph(), planned));
  expect_equal_to_one_process(model, cpus(2), planned);
}

TEST(SharedCopies, WithSeveralMicroBatchesItsGradientsAddUpInAnotherOrder) {
  const LoadedModel model(kFixtures + "gpt.pt2");
  const PlannedJob planned = ends_on_one_device(model.graph(), MicroBatches::kThree);
  EXPECT_FALSE(is_bit_equality_due(model.graph(), planned));
  expect_equal_to_one_process(model, cpus(2), planned);
}

}  // namespace
}  // namespace espalier
