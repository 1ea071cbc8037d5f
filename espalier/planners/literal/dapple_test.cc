#include "espalier/planners/literal/dapple.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "espalier/planners/literal/published_for_tests.h"
#include "testing/refusal.h"

namespace espalier::literal {
namespace {

using espalier::testing::refusal;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A chain of layers of 2 ms forward and 4 ms backward, with so many bytes of weights and of outputs.
PipedreamProfile chain(std::size_t layers, double weights, double activation) {
  PipedreamProfile profile;
  profile.file = "chain";
  for (std::size_t i = 0; i < layers; ++i) {
    profile.nodes.push_back({.id = "node" + std::to_string(i),
                             .description = "Linear",
                             .forward = 2,
                             .backward = 4,
                             .activation = activation,
                             .parameters = weights});
    if (i > 0) profile.edges.push_back({i - 1, i});
  }
  return profile;
}
constexpr double kPerSecond = 1e9;  // bytes: a megabyte takes a millisecond
DappleOptions machines(std::int64_t devices, std::int64_t count, std::int64_t micro_batches) {
  return {.devices_per_machine = devices,
          .machines = count,
          .inner_bandwidth = kPerSecond,
          .outer_bandwidth = kPerSecond / 10,
          .micro_batches = micro_batches};
}

TEST(Dapple, WithoutWeightsReplicasAreBest) {
  // One stage of two replicas: F = 4/2 = 2, B = 8/2 = 4. Warm-up 2, steady 3·6 = 18, ending 4: 24. Two stages
  // would take 30.
  const PipedreamProfile profile = chain(2, 0, 0);
  const DappleResult result = dapple(profile, machines(2, 1, 4));
  EXPECT_THAT(check_dapple(profile, machines(2, 1, 4), result), IsEmpty());
  EXPECT_DOUBLE_EQ(result.time, 24);
  EXPECT_EQ(result.stages.size(), 1U);
  EXPECT_DOUBLE_EQ(result.one_device, 48);  // 4 · (2 · 6)
}

TEST(Dapple, WithWeightsStagesAreBest) {
  // 10 MB of weights in each layer. One stage: AR = 2·(1/2)·20 MB at 1 GB/s = 20 ms: 44. Two stages: Q the
  // last; warm-up 2 + 2, steady 3·6 = 18, ending 4 + 4: 30.
  const PipedreamProfile profile = chain(2, 1e7, 0);
  const DappleResult result = dapple(profile, machines(2, 1, 4));
  EXPECT_THAT(check_dapple(profile, machines(2, 1, 4), result), IsEmpty());
  EXPECT_DOUBLE_EQ(result.time, 30);
  EXPECT_THAT(result.stages, ElementsAre(DappleStage{{0}, {1}}, DappleStage{{1}, {1}}));
  EXPECT_EQ(result.pivot, 1U);
}

TEST(Dapple, ThePivotIsAnEarlierStageThatHoldsMore) {
  // Three layers: two on the first device, one on the second, messages of 1 ms each way. (M − 1)·(F + B) is
  // 3·12 of the first, 3·2 of the message, 3·6 of the second: 36 is more than 18 + 2, so the first is the
  // pivot. Warm-up 4, steady 36, ending 8 (what stands behind ends before): 48.
  const PipedreamProfile profile = chain(3, 0, 1e6);
  const DappleTime time =
      dapple_time(profile, {DappleStage{{0, 1}, {1}}, DappleStage{{2}, {1}}}, machines(2, 1, 4));
  EXPECT_EQ(time.pivot, 0U);
  EXPECT_DOUBLE_EQ(time.milliseconds, 48);
}

TEST(Dapple, MessagesBetweenMachinesTakeTheOuterLinks) {
  // Two machines of one device: a message of 1 MB takes 10 ms, F + B of it 20, and is the pivot: 3·20 is more
  // than 3·6. Warm-up 2 + 10, steady 60, ending 10 + 4 (message and first stage): 86.
  const PipedreamProfile profile = chain(2, 0, 1e6);
  const DappleTime time =
      dapple_time(profile, {DappleStage{{0}, {1, 0}}, DappleStage{{1}, {0, 1}}}, machines(1, 2, 4));
  EXPECT_EQ(time.pivot, 0U);
  EXPECT_DOUBLE_EQ(time.milliseconds, 86);
}

TEST(Dapple, NoPlanOfTwoStagesIsBetterThanTheAnswer) {
  const PipedreamProfile profile = chain(5, 4e6, 2e5);
  const DappleOptions options = machines(2, 2, 6);
  const DappleResult result = dapple(profile, options);
  EXPECT_THAT(check_dapple(profile, options, result), IsEmpty());
  const std::vector<std::vector<std::int64_t>> first{{1, 0}, {2, 0}, {1, 1}, {2, 1}, {1, 2}};
  for (std::size_t cut = 1; cut < 5; ++cut) {
    for (const auto& devices : first) {
      std::vector<DappleStage> stages(2);
      for (std::size_t i = 0; i < 5; ++i) stages[i < cut ? 0 : 1].nodes.push_back(i);
      stages[0].devices = devices;
      stages[1].devices = {2 - devices[0], 2 - devices[1]};
      EXPECT_LE(result.time, dapple_time(profile, stages, options).milliseconds * (1 + 1e-12));
    }
  }
}

TEST(Dapple, PublishedProfilesPassTheChecker) {
  for (const char* name : {"alexnet", "vgg16"}) {
    const PipedreamProfile profile = pipedream_input(name);
    const DappleOptions options = machines(4, 2, 16);
    const DappleResult result = dapple(profile, options);
    EXPECT_THAT(check_dapple(profile, options, result), IsEmpty()) << name;
    EXPECT_GT(result.one_device / result.time, 1) << name;
    EXPECT_LE(result.one_device / result.time, 8) << name;
  }
}

TEST(Dapple, GivesUpAndSaysWhy) {
  DappleOptions options = machines(4, 2, 4);
  options.max_plans = 100;
  EXPECT_THAT(dapple(chain(12, 0, 0), options).why, HasSubstr("more than 100 plans"));
  EXPECT_THAT(refusal([] { dapple(chain(2, 0, 0), machines(0, 1, 4)); }), HasSubstr("positive"));
}

}  // namespace
}  // namespace espalier::literal
