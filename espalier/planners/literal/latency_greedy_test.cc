// Figures are what the authors' program prints for the published inputs
// (github.com/msr-fiddle/dnn-partitioning, commit b207b6a, latency-greedy); measured with it.

#include "espalier/planners/literal/latency_greedy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/planners/literal/latency.h"
#include "espalier/planners/literal/published_for_tests.h"
#include "testing/refusal.h"

namespace espalier::literal {
namespace {

using espalier::testing::refusal;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(LatencyGreedy, IsTheAuthors) {
  const std::vector<std::pair<std::string, const char*>> published{
      {"LayerGraphs/bert24_inference", "100.22"},
      {"LayerGraphs/inceptionv3_inference", "2485.24"},
      {"OperatorGraphs/bert_l-3_inference", "416.20"},
      {"OperatorGraphs/bert_l-12_inference", "867.84"},
      {"OperatorGraphs/resnet50_inference", "839.54"}};
  for (const auto& [input, latency] : published) {
    const std::string file = "dnn-partitioning/latency-inputs/" + input + ".json";
    const MsrProfile profile = read_msr(workload(file), file);
    const LatencyResult result = price_latency(profile, greedy_placement(profile));
    EXPECT_THAT(check_latency(profile, result), IsEmpty()) << input;
    EXPECT_PRED2(rounds_to, result.latency, latency) << input;
    EXPECT_EQ(result.lack, 0) << input;
  }
}

// a → b → d, a → c → d, and c and d of one colour; 40 bytes each, 100 on an accelerator.
MsrProfile diamond() {
  MsrProfile profile;
  profile.file = "diamond.json";
  profile.accelerators = 1;
  profile.memory = 100;
  for (std::int64_t id = 0; id < 4; ++id)
    profile.nodes.push_back({.id = id, .cpu = 10, .accelerator = 1, .bytes = 40, .colour = {}});
  profile.edges = {{0, 1, 2, 0}, {0, 2, 2, 0}, {1, 3, 2, 0}, {2, 3, 2, 0}};
  return profile;
}

TEST(LatencyGreedy, FillsAcceleratorsInADepthFirstOrder) {
  // a, then c (it became ready last), which fill 80 of 100; then b and d, on the CPU.
  const MsrPlacement one = greedy_placement(diamond());
  ASSERT_EQ(one.devices.size(), 2U);
  EXPECT_TRUE(one.devices[0].accelerator);
  EXPECT_THAT(one.devices[0].nodes, ElementsAre(0, 2));
  EXPECT_FALSE(one.devices[1].accelerator);
  EXPECT_THAT(one.devices[1].nodes, ElementsAre(1, 3));
  // A second accelerator takes those.
  EXPECT_THAT(greedy_placement(diamond(), {.accelerators = 2}).devices[1].nodes, ElementsAre(1, 3));
  // With 30 bytes no block fits: all on the CPU.
  const MsrPlacement none = greedy_placement(diamond(), {.memory = 30});
  ASSERT_EQ(none.devices.size(), 1U);
  EXPECT_THAT(none.devices[0].nodes, ElementsAre(0, 2, 1, 3));
}

TEST(LatencyGreedy, ColoursThatWaitForEachOtherAreOneBlock) {
  // a and d have one colour; b and c wait for a, and d for them.
  MsrProfile profile = diamond();
  profile.nodes[0].colour = 1;
  profile.nodes[3].colour = 1;
  EXPECT_THAT(greedy_placement(profile, {.memory = 160}).devices[0].nodes, ElementsAre(0, 1, 2, 3));
  // 160 bytes in one block do not fit into 100.
  EXPECT_FALSE(greedy_placement(profile).devices[0].accelerator);
}

TEST(LatencyGreedy, ACycleIsRefused) {
  MsrProfile profile = diamond();
  profile.edges.push_back({3, 0, 2, 0});
  // Its nodes are one block, so blocks have no cycle: greedy does not mind, the price does.
  EXPECT_THAT(refusal([&] { price_latency(profile, greedy_placement(profile)); }), HasSubstr("cycle"));
}

}  // namespace
}  // namespace espalier::literal
