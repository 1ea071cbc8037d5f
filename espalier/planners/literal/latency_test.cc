// Figures are what the authors' program prints for the published inputs
// (github.com/msr-fiddle/dnn-partitioning, commit b207b6a, latency-greedy -computeLatency); measured with it.

#include "espalier/planners/literal/latency.h"

#include <gmock/gmock.h>

#include <optional>
#include <ostream>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/planners/literal/max_load.h"
#include "espalier/planners/literal/published_for_tests.h"

namespace espalier::literal {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

MsrProfile latency_input(const std::string& name) {
  const std::string file = "dnn-partitioning/latency-inputs/" + name + ".json";
  return read_msr(workload(file), file);
}

LatencyResult priced(const MsrProfile& profile, const MsrPlacement& placement) {
  LatencyResult result = price_latency(profile, placement);
  EXPECT_THAT(check_latency(profile, result), IsEmpty());
  EXPECT_GE(result.latency, latency_bound(profile) * (1 - 1e-12));
  return result;
}

MsrPlacement all_on_cpu(const MsrProfile& profile) {
  MsrPlacement placement{.file = "cpu.json", .devices = {{.accelerator = false}}};
  for (const MsrProfile::Node& node : profile.nodes) placement.devices[0].nodes.push_back(node.id);
  return placement;
}

MsrPlacement linear_plan(const MsrProfile& profile) {
  const MaxLoadResult result = max_load(profile, {.space = MaxLoadSpace::kLinear});
  MsrPlacement placement{.file = "dpl.json", .devices = {}};
  for (const MaxLoadDevice& device : result.devices) {
    placement.devices.push_back({.accelerator = device.accelerator});
    for (const std::size_t node : device.nodes)
      placement.devices.back().nodes.push_back(profile.nodes[node].id);
  }
  return placement;
}

struct Row {
  const char* input;
  const char* cpu;
  const char* bound;
  const char* linear;  // empty: of the plans of one max-load ours is another
  const char* expert;  // empty: there is none
  friend std::ostream& operator<<(std::ostream& out, const Row& row) { return out << row.input; }
};
class Latency : public ::testing::TestWithParam<Row> {};

TEST_P(Latency, IsTheAuthors) {
  const Row& row = GetParam();
  const MsrProfile profile = latency_input(row.input);
  EXPECT_PRED2(rounds_to, priced(profile, all_on_cpu(profile)).latency, row.cpu);
  MsrProfile fast = profile;
  for (MsrProfile::Node& node : fast.nodes) node.cpu = node.accelerator;
  EXPECT_PRED2(rounds_to, latency_bound(fast), row.bound);
  const double linear = priced(profile, linear_plan(profile)).latency;
  if (*row.linear != 0) {
    EXPECT_PRED2(rounds_to, linear, row.linear);
  }
  if (*row.expert == 0) return;
  const std::string name = std::string(row.input).substr(std::string(row.input).find('/') + 1);
  EXPECT_PRED2(rounds_to, priced(profile, expert_placement(name)).latency, row.expert);
}
INSTANTIATE_TEST_SUITE_P(
    Published, Latency,
    ::testing::Values(Row{"LayerGraphs/bert24_inference", "924.06", "92.41", "108.03", "111.94"},
                      Row{"LayerGraphs/inceptionv3_inference", "1952.77", "195.28", "", "865.52"},
                      Row{"OperatorGraphs/bert_l-3_inference", "1099.93", "47.82", "", ""},
                      Row{"OperatorGraphs/bert_l-12_inference", "14016.84", "609.43", "1327.03", ""},
                      Row{"OperatorGraphs/resnet50_inference", "6666.67", "289.86", "", ""}));

// a → b → c and a → c; 1 ms each on an accelerator, 10 on a CPU; an output costs 2.
MsrProfile triangle() {
  MsrProfile profile;
  profile.file = "triangle.json";
  profile.accelerators = 2;
  profile.memory = 100;
  for (std::int64_t id = 0; id < 3; ++id)
    profile.nodes.push_back({.id = id, .cpu = 10, .accelerator = 1, .bytes = 40, .colour = {}});
  profile.edges = {{0, 1, 2, 0}, {1, 2, 2, 0}, {0, 2, 2, 0}};
  return profile;
}

TEST(LatencyPieces, AreCutWhereADeviceWaitsForAnother) {
  const MsrProfile profile = triangle();
  // a and c on one accelerator: a 1 + 2, then b 2 + 1 + 2, then c loads a and b: 2 + 2 + 1.
  const LatencyResult apart = priced(profile, {.file = "p", .devices = {{.nodes = {0, 2}}, {.nodes = {1}}}});
  EXPECT_EQ(apart.pieces.size(), 3U);
  EXPECT_DOUBLE_EQ(apart.latency, 3 + 5 + 5);
  // b on a CPU takes 10 and pays nothing.
  EXPECT_DOUBLE_EQ(
      priced(profile, {.file = "p", .devices = {{.nodes = {0, 2}}, {.accelerator = false, .nodes = {1}}}})
          .latency,
      3 + 10 + 5);
  const LatencyResult together = priced(profile, {.file = "p", .devices = {{.nodes = {0, 1, 2}}}});
  EXPECT_DOUBLE_EQ(together.latency, 3);
  EXPECT_DOUBLE_EQ(together.lack, 20);
}

TEST(LatencyPieces, ThatWaitForEachOtherAreRefused) {
  MsrProfile profile = triangle();
  profile.nodes.push_back({.id = 3, .cpu = 10, .accelerator = 1, .bytes = 1, .colour = {}});
  profile.edges = {{0, 2, 2, 0}, {3, 1, 2, 0}};  // 0 1 on one device, 2 3 on the other
  try {
    price_latency(profile, {.file = "p", .devices = {{.nodes = {0, 1}}, {.nodes = {2, 3}}}});
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("wait for each other's nodes in a circle"));
  }
}

TEST(LatencyPieces, OfRandomPlacementsPassTheirChecker) {
  int priced_ones = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Rng rng(seed);
    MsrProfile profile{.file = "random.json", .accelerators = 2, .memory = 1e3, .nodes = {}, .edges = {}};
    MsrPlacement placement{.file = "p", .devices = {{}, {}, {.accelerator = false}}};
    for (std::size_t v = 0; v < 8; ++v) {
      const auto id = static_cast<std::int64_t>(v);
      profile.nodes.push_back({.id = id,
                               .cpu = static_cast<double>(rng.below(20)),
                               .accelerator = static_cast<double>(rng.below(5)),
                               .bytes = 1,
                               .colour = {}});
      placement.devices[rng.below(3)].nodes.push_back(id);
    }
    for (std::size_t from = 0; from < 8; ++from) {
      const auto cost = static_cast<double>(rng.below(4));
      for (std::size_t to = from + 1; to < 8; ++to) {
        if (rng.below(4) == 0) profile.edges.push_back({from, to, cost, 0});
      }
    }
    try {
      priced(profile, placement);
      ++priced_ones;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr("in a circle"));
    }
  }
  EXPECT_GT(priced_ones, 30);
}

}  // namespace
}  // namespace espalier::literal
