#include "espalier/learned/contrastive.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "espalier/base/files.h"
#include "espalier/learned/placement_task.h"
#include "espalier/learned/towers_for_tests.h"

namespace espalier::placement {
namespace {

constexpr PolicyShape kSmallNet{.width = 16, .heads = 2, .segment = 16};

const PlacementTask& towers_task() {
  static const PlacementTask kTask(two_towers().graph, two_towers().instance, {.clusters = {.clusters = 32}});
  return kTask;
}

std::string bytes_of(const Policy& policy) {
  const std::string path = (std::filesystem::temp_directory_path() / "espalier_contrastive_test").string();
  policy.write(path);
  std::string bytes = read_file(path);
  std::remove(path.c_str());
  return bytes;
}

struct Learnt {
  Policy policy;
  std::vector<ContrastPoint> points;
};
Learnt learnt(const ContrastOptions& options) {
  Learnt result{Policy(kSmallNet, 1), {}};
  const PolicyInput* input = &towers_task().input();
  result.points = contrast(result.policy, {&input, 1}, options, {});
  return result;
}

TEST(Contrast, TheLossFallsAndNodesAreToldFromShuffledOnes) {
  const std::vector<ContrastPoint> points = learnt({.epochs = 150, .learning_rate = 3e-3}).points;
  ASSERT_EQ(points.size(), 150U);
  EXPECT_LT(points.back().loss, 0.6 * points.front().loss);
  EXPECT_LT(points.back().loss, 0.6 * std::log(2.0));
  EXPECT_GT(points.back().right, 0.8);
}

TEST(Contrast, GivesTheSameBytesForASeed) {
  const ContrastOptions options{.epochs = 5, .seed = 3};
  const Learnt one = learnt(options), other = learnt(options);
  EXPECT_EQ(one.points, other.points);
  EXPECT_EQ(bytes_of(one.policy), bytes_of(other.policy));
  EXPECT_NE(learnt({.epochs = 5, .seed = 4}).points, one.points);
}

TEST(Contrast, ChangesTheLayersThatMakeEmbeddingsAndNothingElse) {
  const std::string before = bytes_of(Policy(kSmallNet, 1)), after = bytes_of(learnt({.epochs = 3}).policy);
  const SafetensorsReader old_file(before, "before"), new_file(after, "after");
  ASSERT_EQ(old_file.entries().size(), new_file.entries().size());
  for (const SafetensorsReader::Entry& entry : old_file.entries()) {
    const bool embeds =
        entry.name == "types" || entry.name.starts_with("enter.") || entry.name.starts_with("sage.");
    EXPECT_EQ(entry.data != new_file.find(entry.name)->data, embeds) << entry.name;
  }
}

TEST(Contrast, NoEpochsAndATableChangeNothing) {
  EXPECT_EQ(bytes_of(learnt({.epochs = 0}).policy), bytes_of(Policy(kSmallNet, 1)));
  Policy table = Policy::table();
  const PolicyInput* input = &towers_task().input();
  EXPECT_TRUE(contrast(table, {&input, 1}, {}, {}).empty());
}

}  // namespace
}  // namespace espalier::placement
