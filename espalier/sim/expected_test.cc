#include "espalier/sim/expected.h"

#include <gtest/gtest.h>

#include <vector>

#include "espalier/sim/simulate.h"

namespace espalier {
namespace {

// One stage: a replica on each of `devices` devices, `micro_batches` for each, 10 ms forward, 20 ms backward.
// The replicas meet once, in a sum of gradients that takes next to nothing.
struct Case {
  StagedModel model;
  Cluster cluster;
  Schedule schedule;
};

Case replicas(std::uint32_t devices, std::uint32_t micro_batches) {
  StagedStage stage;
  stage.name = "all";
  stage.micro_batches = devices * micro_batches;
  for (std::uint32_t d = 0; d < devices; ++d) {
    StagedReplica replica;
    replica.devices = {DeviceId(d)};
    for (std::uint32_t j = d; j < stage.micro_batches; j += devices) replica.micro_batches.push_back(j);
    replica.times.forward = milliseconds(10);
    replica.times.input_gradient = milliseconds(20);
    stage.replicas.push_back(replica);
  }
  if (devices > 1) stage.reduced = Bytes(8);
  stage.memory.gradients = Bytes(8);
  StagedModel model;
  model.stages = {stage};
  Cluster cluster = local_cluster({.devices = static_cast<int>(devices), .memory_each = Bytes(1 << 30)});
  Schedule schedule = make_schedule(model, devices);
  return {std::move(model), std::move(cluster), std::move(schedule)};
}

Duration expected(const Case& c, std::int32_t spread) {
  return expected_iteration(c.model, c.cluster, c.schedule, {.spread_per_mille = spread});
}

TEST(Expected, WithoutSpreadItIsTheSimulatedIteration) {
  const Case c = replicas(2, 4);
  EXPECT_EQ(expected(c, 0), simulate(c.model, c.cluster, c.schedule).iteration);
}

TEST(Expected, WhoWaitsForNobodyKeepsItsTime) {
  const Case c = replicas(1, 8);
  const std::int64_t exact = simulate(c.model, c.cluster, c.schedule).iteration.count();
  EXPECT_NEAR(static_cast<double>(expected(c, 200).count()), static_cast<double>(exact), 10);
}

// Each device's sum is normal: mean 240 ms, deviation 0.1 · √(8 · 10² + 8 · 20²) = 6.32 ms. The larger of two
// such sums is 6.32 / √π = 3.57 ms later in the mean; the mean of 64 draws misses that by 0.7 ms or less in
// two of three cases.
TEST(Expected, TheLaterOfTwoIsLaterThanTheMean) {
  const Case c = replicas(2, 8);
  const double usual = to_milliseconds(simulate(c.model, c.cluster, c.schedule).iteration);
  EXPECT_NEAR(to_milliseconds(expected(c, 100)) - usual, 3.57, 2.0);
  EXPECT_GT(expected(c, 200), expected(c, 100));
}

// A device's whole sum now: deviation 0.1 · 240 ms, the larger of two 24 / √π = 13.5 ms later in the mean;
// the mean of 64 draws misses that by 2.5 ms or less in two of three cases.
TEST(Expected, ADeviceThatIsSlowForAWholeStepCountsMore) {
  const Case c = replicas(2, 8);
  const double usual = to_milliseconds(simulate(c.model, c.cluster, c.schedule).iteration);
  const Duration mean = expected_iteration(c.model, c.cluster, c.schedule, {.device_per_mille = 100});
  EXPECT_NEAR(to_milliseconds(mean) - usual, 13.5, 6.0);
  EXPECT_GT(mean, expected(c, 100));
  const Case alone = replicas(1, 8);
  EXPECT_NEAR(to_milliseconds(
                  expected_iteration(alone.model, alone.cluster, alone.schedule, {.device_per_mille = 100})),
              to_milliseconds(simulate(alone.model, alone.cluster, alone.schedule).iteration), 1e-3);
}

TEST(Expected, TheFirstActionOfEachDeviceIsLonger) {
  const Case c = replicas(2, 4);
  const Duration usual = simulate(c.model, c.cluster, c.schedule).iteration;
  EXPECT_EQ(expected_iteration(c.model, c.cluster, c.schedule, {.first = milliseconds(3)}),
            usual + milliseconds(3));
}

TEST(Expected, IsTheSameEachTime) {
  const Case c = replicas(3, 5);
  EXPECT_EQ(expected(c, 150), expected(c, 150));
}

}  // namespace
}  // namespace espalier
