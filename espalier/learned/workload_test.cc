#include "espalier/learned/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "espalier/learned/policy_input.h"
#include "espalier/learned/pretraining.h"

namespace espalier::placement {
namespace {

using ::testing::Each;
using ::testing::Not;

TEST(Workloads, GdpsTwelveHaveTheirDevices) {
  ASSERT_EQ(gdp_workloads().size(), 12U);
  const std::vector<std::size_t> devices{2, 4, 2, 4, 8, 2, 4, 8, 2, 4, 2, 4};
  for (std::size_t i = 0; i < devices.size(); ++i)
    EXPECT_EQ(parse_cluster(gdp_workloads()[i].cluster).devices().size(), devices[i])
        << gdp_workloads()[i].name;
}

TEST(Workloads, DrawnOnesRepeatAndLeaveFamiliesOut) {
  std::set<std::string> models;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const WorkloadRecipe recipe = draw_workload(seed, {"gnmt", "rnnlm"});
    EXPECT_EQ(recipe.values, draw_workload(seed, {"gnmt", "rnnlm"}).values);
    models.insert(recipe.model);
  }
  EXPECT_THAT(models, Each(Not(::testing::AnyOf("gnmt", "rnnlm"))));
  EXPECT_GE(models.size(), 10U);
}

// Every combination of settings that may be drawn can be built; many seeds stand for all.
TEST(Workloads, DrawnOnesCanBeBuilt) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Workload made = make_workload(draw_workload(seed));
    EXPECT_TRUE(check_instance(made.instance).empty());
    EXPECT_GE(made.graph.operators().size(), 50U) << made.name;
  }
}

// Equal devices come in the order of their work; different ones keep their names.
TEST(PolicyInputs, CanonicalPlacementsRenameEqualDevicesAlone) {
  const Workload made =
      make_workload({"mixed",
                     "gpt",
                     {{"layers", 4}, {"hidden", 64}, {"heads", 4}, {"positions", 16}, {"vocabulary", 50}},
                     BatchSize(4),
                     "2xP100-16GB+1xT4@25Gb",
                     {}});
  const Clusters clusters = cluster_units(made.instance, {.clusters = 12});
  const PolicyInput input = make_policy_input(made.instance, made.graph, clusters);
  ASSERT_EQ(input.equal_to, (std::vector<std::uint32_t>{0, 0, 2}));
  std::vector<DeviceId> backwards, forwards;
  for (std::size_t n = 0; n < input.nodes; ++n) {
    const float level = input.numbers[n * kNodeNumbers + 12];
    backwards.emplace_back(level < 0.3F ? 1 : level < 0.6F ? 0 : 2);
    forwards.emplace_back(level < 0.3F ? 0 : level < 0.6F ? 1 : 2);
  }
  EXPECT_EQ(canonical(input, backwards), forwards);
  EXPECT_EQ(canonical(input, forwards), forwards);
}

TEST(PolicyInputs, RowsHaveTheirSizes) {
  const Workload made = make_workload(draw_workload(3));
  const Clusters clusters = cluster_units(made.instance, {.clusters = 50});
  const PolicyInput input = make_policy_input(made.instance, made.graph, clusters);
  EXPECT_EQ(input.numbers.size(), input.nodes * kNodeNumbers);
  EXPECT_EQ(input.device_numbers.size(), input.devices * kDeviceNumbers);
  EXPECT_EQ(input.types.size(), input.nodes);
  EXPECT_EQ(input.neighbours.size(), input.nodes);
  float work = 0;
  for (const float each : input.work) work += each;
  EXPECT_NEAR(work, 1, 1e-4);
  for (const float number : input.numbers) ASSERT_LT(std::abs(number), 10);
  for (const float number : input.device_numbers) ASSERT_LT(std::abs(number), 10);
}

// After a few rounds a policy gives the placements that searches found more probability than one that has
// seen nothing.
TEST(Pretraining, LearnsWhatSearchesFound) {
  ThreadPool pool(2);
  const TrainingSet set = make_training_set({.graphs = 12, .looks = 600, .seed = 40}, &pool);
  ASSERT_GE(set.size(), 6U);
  Context context;
  context.budget.max_states = ~std::uint64_t{0};
  Policy trained(PolicyShape{.width = 32}, 1);
  const Policy fresh = trained.clone();
  pretrain(trained, set, {.rounds = 12, .updates = 20}, context);
  double gained = 0, lessons = 0;
  for (const std::unique_ptr<TrainingGraph>& graph : set) {
    for (const Lesson& lesson : graph->lessons) {
      const PolicyInput& input = lesson.task.input();
      const auto expected = [&](const Policy& policy) {
        const std::vector<float> rows = policy.probabilities(input);
        double chosen = 0;
        for (std::size_t n = 0; n < lesson.target.size(); ++n)
          chosen += static_cast<double>(rows[n * input.devices + lesson.target[n].index()]);
        return chosen / static_cast<double>(lesson.target.size());
      };
      gained += expected(trained) - expected(fresh);
      lessons += 1;
    }
  }
  EXPECT_GT(gained / lessons, 0.1);
}

TEST(Pretraining, EachGraphIsALessonByEachOrder) {
  const TrainingSet set =
      make_training_set({.graphs = 3, .by_each_order = true, .looks = 60, .seed = 40}, nullptr);
  ASSERT_FALSE(set.empty());
  for (const std::unique_ptr<TrainingGraph>& graph : set) {
    ASSERT_EQ(graph->lessons.size(), 2U);
    EXPECT_TRUE(graph->lessons[0].task.input().by_priority);
    EXPECT_FALSE(graph->lessons[1].task.input().by_priority);
    for (const Lesson& lesson : graph->lessons) {
      const Sample sample = judge(lesson.task, {lesson.target}, Repairs::kNone, nullptr).front();
      EXPECT_TRUE(sample.evaluated.fits);
      EXPECT_NEAR(score(lesson.task, sample.evaluated), lesson.target_score, 1e-9);
    }
  }
}

}  // namespace
}  // namespace espalier::placement
