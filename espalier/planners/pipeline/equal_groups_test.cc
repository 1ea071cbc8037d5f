// The planners that take the number of stages as given: autopipe and bapipe.

#include "espalier/planners/pipeline/equal_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/planners/automatic.h"
#include "espalier/planners/candidate.h"
#include "espalier/planners/pipeline/autopipe.h"
#include "espalier/planners/pipeline/bapipe.h"
#include "espalier/planners/toy_for_tests.h"
#include "testing/brute_force.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::vector<NamedPlanner> planners_of_equal_groups() {
  return {{"autopipe", [](const Problem& p, Context& c) { return autopipe(p, {}, c); }},
          {"bapipe", [](const Problem& p, Context& c) { return bapipe(p, {}, c); }}};
}

// A chain of operators of so many milliseconds forward, twice that backward.
std::string chain_text(const std::vector<std::int64_t>& times) {
  std::string text = "x = input() : f32[b]\nw = parameter(w) : f32[1]\n", before = "x";
  for (std::size_t i = 0; i < times.size(); ++i) {
    const std::string name = i + 1 == times.size() ? "loss" : "h" + std::to_string(i);
    text += name + " = f(" + before + ", w) : f32[" + (i + 1 == times.size() ? "" : "b") + "] @class=c" +
            std::to_string(times[i]) + "\n";
    before = name;
  }
  return text;
}

TEST(EqualGroups, DivideTheRow) {
  const std::vector<DeviceId> row{DeviceId(0), DeviceId(1), DeviceId(2), DeviceId(3)};
  const std::vector<DeviceGroups> all = equal_groups(row, 9, 8);
  ASSERT_THAT(all, SizeIs(3));
  EXPECT_THAT(all[0], ElementsAre(row));
  EXPECT_THAT(all[1], ElementsAre(ElementsAre(row[0], row[1]), ElementsAre(row[2], row[3])));
  EXPECT_THAT(all[2], SizeIs(4));
  EXPECT_THAT(equal_groups(row, 3, 8), SizeIs(2));  // four stages need four blocks
  EXPECT_THAT(equal_groups(row, 9, 2), SizeIs(2));  // four replicas need four micro-batches
}

TEST(EqualGroups, PlansOfRandomChainsNeverBeatTheOptimum) {
  Rng rng(11);
  for (int trial = 0; trial < 12; ++trial) {
    std::vector<std::int64_t> times;
    for (std::size_t left = 3 + rng.below(2); left > 0; --left)
      times.push_back(static_cast<std::int64_t>(1 + rng.below(6)));
    const std::string text = chain_text(times);
    const Toy toy(text, kThreeDevices, static_cast<std::int64_t>(1 + rng.below(4)));
    const auto optimum = ::espalier::testing::brute_force(toy.problem());
    for (const NamedPlanner& planner : planners_of_equal_groups()) {
      Context context;
      const Outcome outcome = planner.plan(toy.problem(), context);
      ASSERT_EQ(outcome.status, Status::kFeasible) << planner.name << outcome.why << text;
      EXPECT_GE(toy.simulated(outcome), optimum.iteration) << planner.name << "\n" << text;
    }
  }
}

// The least of all chains: every cut into at most three stages, every number of replicas for each, with
// 1F1B's limits and with those of 1F1B-SO.
Duration best_chain(const Toy& toy) {
  const Problem problem = toy.problem();
  const std::vector<OperatorId> order = chain_order(toy.graph);
  Context context;
  Judge judge(problem, context);
  const auto consider = [&](const std::vector<std::size_t>& ends, const std::vector<std::size_t>& replicas) {
    for (const bool more : {false, true}) {
      std::vector<StageDraft> drafts;
      std::size_t begin = 0, device = 0;
      for (std::size_t s = 0; s < ends.size(); ++s) {
        StageDraft draft;
        draft.operators = std::vector<OperatorId>(order.begin() + static_cast<std::ptrdiff_t>(begin),
                                                  order.begin() + static_cast<std::ptrdiff_t>(ends[s]));
        for (std::size_t r = 0; r < replicas[s]; ++r) draft.devices.emplace_back(device++);
        if (s > 0) draft.after = {s - 1};
        if (more) draft.more_in_flight = static_cast<std::int32_t>(ends.size() - 1 - s);
        drafts.push_back(draft);
        begin = ends[s];
      }
      judge.consider(drafts, BatchSize(1), ScheduleKind::kOneFOneB);
    }
  };
  const std::size_t n = order.size();
  for (std::size_t r = 1; r <= 3; ++r) consider({n}, {r});
  for (std::size_t a = 1; a < n; ++a) {
    for (const auto& [r, t] : {std::pair<std::size_t, std::size_t>{1, 1}, {1, 2}, {2, 1}})
      consider({a, n}, {r, t});
    for (std::size_t b = a + 1; b < n; ++b) consider({a, b, n}, {1, 1, 1});
  }
  return *judge.best();
}

TEST(EqualGroups, EvenChainsArePlannedAsWellAsAChainCanBe) {
  for (const std::int64_t batch : {3, 6}) {
    for (const auto& times : {std::vector<std::int64_t>{4, 4, 4}, {2, 2, 2, 2, 2, 2}}) {
      const Toy toy(chain_text(times), kThreeDevices, batch);
      for (const NamedPlanner& planner : planners_of_equal_groups()) {
        Context context;
        EXPECT_EQ(toy.simulated(planner.plan(toy.problem(), context)), best_chain(toy))
            << planner.name << " " << batch;
      }
    }
  }
}

TEST(EqualGroups, NoChainIsBeaten) {
  Rng rng(12);
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<std::int64_t> times;
    for (std::size_t left = 3 + rng.below(5); left > 0; --left)
      times.push_back(static_cast<std::int64_t>(1 + rng.below(6)));
    const Toy toy(chain_text(times), kThreeDevices, static_cast<std::int64_t>(1 + rng.below(8)));
    for (const NamedPlanner& planner : planners_of_equal_groups()) {
      Context context;
      EXPECT_GE(toy.simulated(planner.plan(toy.problem(), context)), best_chain(toy)) << planner.name;
    }
  }
}

TEST(EqualGroups, PinsAreRefused) {
  const Toy toy(chain_text({1, 2, 3}), kThreeDevices, 4);
  for (const NamedPlanner& planner : planners_of_equal_groups()) {
    Context context;
    const Outcome outcome = planner.plan(toy.problem({{"h0", DeviceId(2)}}), context);
    EXPECT_EQ(outcome.status, Status::kUnsupported);
    EXPECT_THAT(outcome.why, HasSubstr("'" + planner.name + "' does not keep pins"));
  }
}

TEST(EqualGroups, WhatDoesNotFitSaysWhatIsShort) {
  Toy toy(chain_text({1, 2, 3}), kThreeDevices, 4);
  ClusterParts parts = toy.cluster.parts();
  for (Device& device : parts.devices) device.memory = Bytes(8);
  toy.cluster = Cluster(parts);
  for (const NamedPlanner& planner : planners_of_equal_groups()) {
    Context context;
    const Outcome outcome = planner.plan(toy.problem(), context);
    EXPECT_EQ(outcome.status, Status::kInfeasible) << planner.name;
    EXPECT_TRUE(outcome.closest.has_value()) << planner.name;
  }
}

TEST(EqualGroups, BapipeStartsMoreWhereMessagesWait) {
  // Messages of 500 us beside stages of 4 and 8 ms. With SNO M + n - 2 of them wait, with SO n - 1: SO, and
  // the first of three stages holds 5. Weights of a GiB in all do not fit on one device, so three stages it
  // is.
  std::string text = "x = input() : f32[b]\n", before = "x";
  for (const std::string name : {"h0", "h1", "loss"}) {
    text += "w" + name + " = parameter(w" + name + ") : f32[50000000]\n" + name + " = f(" + before + ", w" +
            name + ") : f32[" + (name == "loss" ? "" : "b") + "] @class=c4\n";
    before = name;
  }
  const Toy toy(text, kThreeDevices, 8);
  Context context;
  const Outcome outcome = bapipe(toy.problem(), {}, context);
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  const auto& plan = std::get<PipelinePlan>(*outcome.plan);
  ASSERT_THAT(plan.stages, SizeIs(3));
  EXPECT_EQ(plan.stages[0].in_flight, 5U);
  EXPECT_EQ(plan.stages[2].in_flight, 1U);
}

}  // namespace
}  // namespace espalier
