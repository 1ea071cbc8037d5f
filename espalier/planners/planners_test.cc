// Preset tsan compiles this file: its suites run under ThreadSanitizer too.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/cluster/text.h"
#include "espalier/graph/text.h"
#include "espalier/plan/text.h"
#include "espalier/planners/automatic.h"
#include "espalier/planners/pipeline/branches.h"
#include "espalier/planners/pipeline/chain.h"
#include "espalier/planners/pipeline/checkpointed.h"
#include "espalier/planners/pipeline/even.h"
#include "espalier/planners/pipeline/graphpipe.h"
#include "espalier/planners/pipeline/locked.h"
#include "espalier/planners/pipeline/pipedream.h"
#include "espalier/planners/pipeline/single.h"
#include "espalier/planners/toy_for_tests.h"
#include "testing/brute_force.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::refusal;
using ::testing::SizeIs;

std::vector<NamedPlanner> all_planners() {
  return {
      {"single", [](const Problem& p, Context& c) { return single(p, {}, c); }},
      {"even", [](const Problem& p, Context& c) { return even(p, {}, c); }},
      {"even-parameters",
       [](const Problem& p, Context& c) {
         return even(p, {.balance = EvenOptions::Balance::kParameters}, c);
       }},
      {"pipedream", [](const Problem& p, Context& c) { return pipedream(p, {}, c); }},
      {"branches", [](const Problem& p, Context& c) { return branches(p, {}, c); }},
      {"graphpipe", [](const Problem& p, Context& c) { return graphpipe(p, {}, c); }},
  };
}

TEST(Pins, PatternsMatchModulesAndNamesAndErrorsNameThem) {
  const Toy toy(
      "x = input() : f32[b]\na = f(x) : f32[b] @class=c1 @module=vision.conv\nb = f(a) : f32[b] @class=c1\n",
      kThreeDevices, 2);
  const auto pins = resolve_pins(toy.graph, {parse_pin("vision.*=dev1", toy.cluster)});
  EXPECT_THAT(pins, ElementsAre(DeviceId(1), std::nullopt));
  EXPECT_THAT(refusal([&] { parse_pin("vision.*=gpu7", toy.cluster); }),
              HasSubstr("no device 'gpu7'; the cluster has dev0, dev1, dev2"));
  EXPECT_THAT(refusal([&] {
                resolve_pins(toy.graph, {{"audio.*", DeviceId(0)}});
              }),
              HasSubstr("'audio.*' matches no operator"));
}

TEST(Branches, PlansTheWorkedExampleAsAGraphPipeline) {
  const Toy toy(kTowers, kThreeDevices, 4);
  Context context;
  const Outcome outcome = branches(toy.problem(), {}, context);
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  EXPECT_EQ(toy.simulated(outcome),
            milliseconds(26));  // the worked example of docs/semantics.md
}

TEST(Branches, AChainIsUnsupportedAndSaysSo) {
  const Toy toy("x = input() : f32[b]\na = f(x) : f32[b] @class=c1\nloss = sum(a) : f32[] @class=c1\n",
                kThreeDevices, 2);
  Context context;
  const Outcome outcome = branches(toy.problem(), {}, context);
  EXPECT_EQ(outcome.status, Status::kUnsupported);
  EXPECT_THAT(outcome.why, HasSubstr("no two branches"));
}

TEST(Single, UsesOneDeviceAndTakesAllTheWork) {
  const Toy toy(kTowers, kThreeDevices, 4);
  Context context;
  const Outcome outcome = single(toy.problem(), {}, context);
  EXPECT_EQ(toy.simulated(outcome), milliseconds(4 * 15));
}

TEST(Even, CutsTheChainWhereTheSharesAreClosest) {
  // 1+1+4 | 3+3: 18 ms and 18 ms of forward and backward.
  const Toy toy(
      "x = input() : f32[b]\na = f(x) : f32[b] @class=c1\nb = f(a) : f32[b] @class=c1\nc = f(b) : f32[b] "
      "@class=c4\n"
      "d = f(c) : f32[b] @class=c3\nloss = f(d) : f32[] @class=c3\n",
      "kind gpu 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\ngroup network latency=500us "
      "lanes=unlimited\n"
      "device dev0 gpu in network\ndevice dev1 gpu in network\n",
      4);
  Context context;
  const Outcome outcome = even(toy.problem(), {}, context);
  const auto& plan = std::get<PipelinePlan>(*outcome.plan);
  ASSERT_THAT(plan.stages, SizeIs(2));
  EXPECT_THAT(plan.stages[0].operators, ElementsAre(OperatorId(0), OperatorId(1), OperatorId(2)));
}

TEST(Planners, NeverBeatTheOptimumAndAlwaysPassTheCheckers) {
  std::vector<NamedPlanner> planners = all_planners();
  planners.push_back({"checkpointed", [](const Problem& p, Context& c) { return checkpointed(p, {}, c); }});
  Rng rng(5);
  std::map<std::string, int> planned;
  for (int trial = 0; trial < 25; ++trial) {
    const std::string text = random_graph_text(rng);
    const Toy toy(text, kThreeDevices, static_cast<std::int64_t>(1 + rng.below(4)));
    const auto optimum = ::espalier::testing::brute_force(toy.problem());
    ASSERT_TRUE(optimum.plan.has_value());
    EXPECT_LE(plan_bound(toy.graph, toy.cluster, toy.costs, toy.training, Bound::Scope::kOneSize).time,
              optimum.iteration)
        << text;
    for (const NamedPlanner& planner : planners) {
      Context context;
      const Outcome outcome = planner.plan(toy.problem(), context);
      if (outcome.status == Status::kUnsupported) {
        EXPECT_EQ(planner.name, "branches") << outcome.why << "\n" << text;  // a chain has none
        continue;
      }
      ASSERT_EQ(outcome.status, Status::kFeasible) << planner.name << ": " << outcome.why << "\n" << text;
      ++planned[planner.name];
      EXPECT_GE(toy.simulated(outcome), optimum.iteration) << planner.name << "\n" << text;
    }
  }
  for (const NamedPlanner& planner : planners) {
    EXPECT_GE(planned[planner.name], planner.name == "branches" ? 5 : 25) << planner.name;
  }
}

TEST(Planners, InfeasibleSaysWhatIsShortAndBy) {
  Toy toy(kTowers, kThreeDevices, 4);
  ClusterParts parts = toy.cluster.parts();
  for (Device& device : parts.devices) device.memory = Bytes(8);
  toy.cluster = Cluster(parts);
  Context context;
  const Outcome outcome = single(toy.problem(), {}, context);
  EXPECT_EQ(outcome.status, Status::kInfeasible);
  EXPECT_FALSE(outcome.plan.has_value());
  EXPECT_THAT(outcome.why, HasSubstr("on dev0, which has 8 B;"));
}

TEST(Planners, WhatComesClosestIsProposedWhereTheEstimateRulesAllOut) {
  Toy toy(kTowers, kThreeDevices, 4);
  ClusterParts parts = toy.cluster.parts();
  for (Device& device : parts.devices) device.memory = Bytes(8);
  toy.cluster = Cluster(parts);
  Context context;
  const Outcome outcome = pipedream(toy.problem(), {}, context);
  EXPECT_EQ(outcome.status, Status::kInfeasible);
  EXPECT_THAT(outcome.why, HasSubstr("nothing fits: the closest plan, with micro-batches of 1, needs"));
  ASSERT_TRUE(outcome.closest.has_value());
  ASSERT_TRUE(outcome.closest->pipeline());
  EXPECT_THAT(check_plan(toy.graph, toy.cluster, *outcome.closest->pipeline()), IsEmpty());
  EXPECT_GT(outcome.closest->lack(), Bytes());
  // A larger budget would not help, and is not asked for.
  EXPECT_THAT(outcome.why, ::testing::Not(HasSubstr("budget")));
}

TEST(Planners, PinsAreKept) {
  const Toy toy(kTowers, kThreeDevices, 4);
  Context context;
  const Outcome outcome = single(toy.problem({{"img", DeviceId(2)}}), {}, context);
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  EXPECT_EQ(std::get<PipelinePlan>(*outcome.plan).stages[0].replicas[0].devices, std::vector{DeviceId(2)});
}

// Six layers in a row, each 1 ms forward and 2 ms backward.
constexpr const char* kLayers =
    "x = input() : f32[b]\nw = parameter(w) : f32[1]\n"
    "l0 = f(x, w) : f32[b] @class=c1\nl1 = f(l0, w) : f32[b] @class=c1\nl2 = f(l1, w) : f32[b] @class=c1\n"
    "l3 = f(l2, w) : f32[b] @class=c1\nl4 = f(l3, w) : f32[b] @class=c1\nloss = f(l4, w) : f32[] @class=c1\n";

// Where each operator of the plan stands; "dev0 dev0 dev1 …", with replicas "dev0/dev1".
std::string places(const Toy& toy, const Outcome& outcome) {
  const auto& plan = std::get<PipelinePlan>(*outcome.plan);
  std::vector<std::string> place(toy.graph.operators().size());
  for (const Stage& stage : plan.stages) {
    for (const OperatorId op : stage.operators) {
      for (const Replica& replica : stage.replicas) {
        place[op.index()] +=
            (place[op.index()].empty() ? "" : "/") + std::to_string(replica.devices.front().index());
      }
    }
  }
  std::string text;
  for (const std::string& each : place) text += (text.empty() ? "" : " ") + each;
  return text;
}

TEST(Pins, HalvesPinnedToTwoDevicesArePlannedByEveryChainPlanner) {
  const Toy toy(kLayers, kThreeDevices, 4);
  Pins pins;
  for (const char* name : {"l0", "l1", "l2"}) pins.push_back({name, DeviceId(2)});
  for (const char* name : {"l3", "l4", "loss"}) pins.push_back({name, DeviceId(0)});
  for (const NamedPlanner& planner : all_planners()) {
    Context context;
    const Outcome outcome = planner.plan(toy.problem(pins), context);
    if (planner.name == "single" || planner.name == "branches") {
      EXPECT_FALSE(outcome.plan) << planner.name;  // no such plan is in their space
      continue;
    }
    ASSERT_EQ(outcome.status, Status::kFeasible) << planner.name << ": " << outcome.why;
    EXPECT_EQ(places(toy, outcome), "2 2 2 0 0 0") << planner.name;
    toy.simulated(outcome);
  }
}

TEST(Pins, TheFirstAndTheLastLayerPinnedLeaveSharesEven) {
  const Toy toy(kLayers, kThreeDevices, 4);
  const Pins pins{{"l0", DeviceId(2)}, {"loss", DeviceId(0)}};
  for (const NamedPlanner& planner : all_planners()) {
    if (planner.name == "single" || planner.name == "branches") continue;
    Context context;
    const Outcome outcome = planner.plan(toy.problem(pins), context);
    ASSERT_EQ(outcome.status, Status::kFeasible) << planner.name << ": " << outcome.why;
    if (planner.name != "even-parameters") {
      EXPECT_EQ(places(toy, outcome), "2 2 1 1 0 0") << planner.name;
    }
  }
}

TEST(Pins, ALayerPinnedToALaterDeviceDoesNotCollapseTheModel) {
  const Toy toy(kLayers, kThreeDevices, 4);
  Context context;
  const Outcome outcome = pipedream(toy.problem({{"l0", DeviceId(2)}}), {}, context);
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  EXPECT_LT(toy.simulated(outcome), milliseconds(45));  // two devices, (4 + 1) × 9 ms; one takes 72
}

TEST(Pins, BothEndsPinnedToOneDeviceGiveItTwoStages) {
  const Toy toy(kLayers, kThreeDevices, 8);
  Context context;
  const Outcome outcome = pipedream(toy.problem({{"l0", DeviceId(1)}, {"loss", DeviceId(1)}}), {}, context);
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  EXPECT_LT(toy.simulated(outcome), milliseconds(8 * 18 * 2 / 3));
}

TEST(Pins, ATowerPinnedKeepsTheGraphPipeline) {
  const Toy toy(kTowers, kThreeDevices, 4);
  Context context;
  const Outcome outcome = branches(toy.problem({{"img", DeviceId(2)}, {"loss", DeviceId(0)}}), {}, context);
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  EXPECT_EQ(places(toy, outcome), "2 1 0");
  EXPECT_EQ(toy.simulated(outcome), milliseconds(26));  // as without pins: all devices are alike
}

// Every chain planner finds a plan, whatever is pinned, and it obeys.
TEST(Pins, RandomPinsOfAChainAreObeyed) {
  Rng rng(21);
  int found = 0;
  for (int trial = 0; trial < 20; ++trial) {
    const std::size_t n = 3 + rng.below(2);
    std::string text = "x = input() : f32[b]\nw = parameter(w) : f32[1]\n", previous = "x";
    Pins pins;
    for (std::size_t i = 0; i < n; ++i) {
      const std::string name = i + 1 == n ? "loss" : "h" + std::to_string(i);
      text += name + " = f(" + previous + ", w) : f32[" + (i + 1 == n ? "" : "b") + "] @class=c" +
              std::to_string(1 + rng.below(6)) + "\n";
      previous = name;
      if (rng.below(3) == 0) pins.push_back({name, DeviceId(rng.below(3))});
    }
    const Toy toy(text, kThreeDevices, 3);
    const Problem problem = toy.problem(pins);
    const auto pinned = resolve_pins(toy.graph, pins);
    for (const NamedPlanner& planner : all_planners()) {
      Context context;
      const Outcome outcome = planner.plan(problem, context);
      if (!outcome.plan) {
        EXPECT_TRUE(planner.name == "single" || planner.name == "branches") << planner.name << text;
        continue;
      }
      ++found;
      toy.simulated(outcome);
      for (const Stage& stage : std::get<PipelinePlan>(*outcome.plan).stages) {
        for (const OperatorId op : stage.operators) {
          if (!pinned[op.index()]) continue;
          EXPECT_THAT(stage.replicas, SizeIs(1));
          EXPECT_EQ(stage.replicas[0].devices, std::vector{*pinned[op.index()]});
        }
      }
    }
  }
  EXPECT_GT(found, 50);
}

TEST(Automatic, TakesTheFastestAndSaysWhichIsNext) {
  const Toy toy(kTowers, kThreeDevices, 4);
  Context context;
  const Outcome outcome = automatic(toy.problem(), all_planners(), context);
  ASSERT_EQ(outcome.status, Status::kFeasible);
  for (const Candidate& candidate : run_all(toy.problem(), all_planners(), context)) {
    if (candidate.simulated) {
      EXPECT_LE(toy.simulated(outcome), *candidate.simulated) << candidate.name;
    }
  }
  EXPECT_THAT(outcome.why, HasSubstr("next is"));
}

TEST(Planners, SameInputsGiveTheSameBytes) {
  const Toy toy(kTowers, kThreeDevices, 4);
  for (const NamedPlanner& planner : all_planners()) {
    Context a, b;
    EXPECT_EQ(planner.plan(toy.problem(), a).plan, planner.plan(toy.problem(), b).plan) << planner.name;
  }
}

TEST(Planners, StagesThatWriteBuffersHaveReplicasOnlyIfTheProblemAllowsIt) {
  // One heavy operator: replicas of it are the only way to use three devices.
  const Toy toy(
      "x = input() : f32[b]\nm = buffer(running) : f32[1]\nw = parameter(w) : f32[1]\n"
      "n = norm(x, m, w) : f32[b] @mutates=m @class=c8\nloss = f(n, w) : f32[] @class=c1\n",
      kThreeDevices, 6);
  const auto replicas = [&](const NamedPlanner& planner, WrittenBuffers written) {
    Problem problem = toy.problem();
    problem.written_buffers = written;
    Context context;
    const Outcome outcome = planner.plan(problem, context);
    if (!outcome.plan) return std::size_t{0};
    const auto& plan = std::get<PipelinePlan>(*outcome.plan);
    EXPECT_THAT(check_plan(toy.graph, toy.cluster, plan), IsEmpty());
    return plan.stages.front().replicas.size();
  };
  for (const NamedPlanner& planner : all_planners()) {
    EXPECT_LE(replicas(planner, WrittenBuffers::kOneReplica), 1U) << planner.name;
  }
  EXPECT_GT(replicas(all_planners()[3], WrittenBuffers::kReplicated), 1U);
}

TEST(Single, ALaterDeviceOfTheKindIsTriedWhereTheFirstHasLessMemory) {
  Toy toy(kTowers, kThreeDevices, 4);
  ClusterParts parts = toy.cluster.parts();
  parts.devices[0].memory = Bytes(8);
  toy.cluster = Cluster(parts);
  Context context;
  const Outcome outcome = single(toy.problem(), {}, context);
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  EXPECT_EQ(std::get<PipelinePlan>(*outcome.plan).stages[0].replicas[0].devices, std::vector{DeviceId(1)});
}

TEST(Planners, AModuleWithAMadeUpNameDoesNotMeetIt) {
  // A stage of all operators is called model, those without a module after their operators.
  std::string text = kTowers;
  text.replace(text.find("@class=c2"), 9, "@class=c2 @module=model");
  const Toy toy(text, kThreeDevices, 4);
  for (const NamedPlanner& planner : all_planners()) {
    Context context;
    toy.simulated(planner.plan(toy.problem(), context));  // passes check_plan
  }
}

TEST(Planners, WhatWouldDoIsSaidOfAllDevicesThatLackMemory) {
  Toy toy(kTowers, kThreeDevices, 4);
  ClusterParts parts = toy.cluster.parts();
  for (Device& device : parts.devices) device.memory = Bytes(4);
  toy.cluster = Cluster(parts);
  Context context;
  const Outcome outcome = even(toy.problem(), {}, context);
  ASSERT_EQ(outcome.status, Status::kInfeasible);
  EXPECT_THAT(outcome.why, HasSubstr(" there and "));
  EXPECT_THAT(outcome.why, HasSubstr(" on 2 other devices"));
}

TEST(Planners, ASpentBudgetIsNotTakenForNoPlan) {
  const Toy toy(kTowers, kThreeDevices, 4);
  Context context;
  context.budget.max_states = 1;
  const Outcome outcome = pipedream(toy.problem(), {}, context);
  EXPECT_EQ(outcome.status, Status::kBudgetSpent);
  EXPECT_THAT(outcome.why, HasSubstr("the budget of 1 states was spent before a plan was found"));
}

TEST(Branches, WhatBelongsTogetherIsNotTornApart) {
  // `late` reads the memory that img writes: one colocation group across a branch and what stands behind it.
  std::string text = kTowers;
  text.replace(text.find("@class=c2"), 9, "@class=c2 @colocate=7");
  text.replace(text.find("@class=c1"), 9, "@class=c1 @colocate=7");
  const Toy toy(text, kThreeDevices, 4);
  Context context;
  const Outcome outcome = branches(toy.problem(), {}, context);
  if (outcome.plan) toy.simulated(outcome);  // passes check_plan
}

TEST(Chain, WhatABlockReceivesIsNotCountedAsKeptToo) {
  const Toy toy(
      "x = input() : f32[b]\nw = parameter(w) : f32[1]\na = f(x, w) : f32[b] @class=c1\n"
      "loss = f(a, w) : f32[] @class=c1\n",
      kThreeDevices, 4);
  const Problem problem = toy.problem();
  const Linearization line(problem, chain_order(toy.graph));
  const Chain chain(line, BatchSize(1));
  ASSERT_EQ(chain.blocks(), 2U);
  EXPECT_EQ(chain.price(0, 1).saved, Bytes(4));  // x
  EXPECT_EQ(chain.price(1, 2).saved, Bytes());   // a stands in a receive slot
  EXPECT_EQ(chain.price(0, 2).saved, Bytes(8));  // x and a
}

// a → b → c → d, and e beside them, all before the loss.
constexpr const char* kLine =
    "x = input() : f32[b]\nw = parameter(w) : f32[1]\n"
    "a = f(x, w) : f32[b] @class=c1\nb = f(a, w) : f32[b] @class=c2\nc = f(b, w) : f32[b] @class=c3\n"
    "d = f(c, w) : f32[b] @class=c2\ne = f(x, w) : f32[b] @class=c2\nloss = f(d, e, w) : f32[] @class=c1\n";

LockedStage locked_stage(const Toy& toy, const std::string& name, std::vector<std::string> operators,
                         std::size_t device) {
  LockedStage locked;
  locked.where = "plan.json: stages[" + name + "]";
  locked.stage.name = name;
  for (const std::string& op : operators) locked.stage.operators.push_back(*toy.graph.find_operator(op));
  locked.stage.replicas = {{{DeviceId(device)}, {}}};
  locked.stage.micro_batch = BatchSize(1);
  return locked;
}

TEST(Locked, StagesAreKeptAndTheRestIsPlannedAroundThem) {
  const Toy toy(kLine, kThreeDevices, 4);
  Problem problem = toy.problem();
  problem.locked = {locked_stage(toy, "mine", {"b", "c"}, 1)};  // a before it, d and the loss behind it
  ASSERT_THAT(locked_conflicts(problem), IsEmpty());
  Context context;
  const Outcome outcome = keep_locked(problem, {}, context);
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  toy.simulated(outcome);  // passes the checkers
  const auto& plan = std::get<PipelinePlan>(*outcome.plan);
  const auto mine = std::find_if(plan.stages.begin(), plan.stages.end(),
                                 [](const Stage& stage) { return stage.name == "mine"; });
  ASSERT_NE(mine, plan.stages.end());
  EXPECT_EQ(mine->operators, problem.locked[0].stage.operators);
  EXPECT_EQ(mine->replicas[0].devices, std::vector{DeviceId(1)});
}

TEST(Locked, WithEverythingLockedThePlanIsTheLockedStages) {
  const Toy toy(kLine, kThreeDevices, 4);
  Problem problem = toy.problem();
  problem.locked = {locked_stage(toy, "front", {"a", "b", "e"}, 2),
                    locked_stage(toy, "back", {"c", "d", "loss"}, 0)};
  Context context;
  const Outcome outcome = keep_locked(problem, {}, context);
  const auto& plan = std::get<PipelinePlan>(*outcome.plan);
  ASSERT_THAT(plan.stages, SizeIs(2));
  EXPECT_EQ(plan.stages[0].name, "front");
  EXPECT_EQ(plan.stages[0].replicas[0].devices, std::vector{DeviceId(2)});
  EXPECT_EQ(plan.stages[1].operators, problem.locked[1].stage.operators);
}

TEST(Locked, ConflictsNameThePlace) {
  const Toy toy(kLine, kThreeDevices, 4);
  const auto conflict = [&](std::vector<LockedStage> locked, Pins pins = {}) {
    Problem problem = toy.problem(std::move(pins));
    problem.locked = std::move(locked);
    const std::vector<std::string> found = locked_conflicts(problem);
    return found.empty() ? "none" : found.front();
  };
  EXPECT_THAT(
      conflict({locked_stage(toy, "0", {"a", "c"}, 0)}),
      ::testing::AllOf(HasSubstr("stages[0]: a path leaves it"), HasSubstr("'b', which is not locked")));
  EXPECT_THAT(conflict({locked_stage(toy, "0", {"a", "c"}, 0), locked_stage(toy, "1", {"b", "d"}, 1)}),
              HasSubstr("stages[0]: a path leaves it and returns through plan.json: stages[1]"));
  EXPECT_THAT(conflict({locked_stage(toy, "0", {"a"}, 0), locked_stage(toy, "1", {"a"}, 1)}),
              HasSubstr("stages[1]: 'a' stands in plan.json: stages[0], too"));
  EXPECT_THAT(conflict({locked_stage(toy, "0", {"a"}, 0), locked_stage(toy, "1", {"b"}, 0)}),
              HasSubstr("stages[1]: stands on dev0, and so does plan.json: stages[0]"));
  EXPECT_THAT(conflict({locked_stage(toy, "0", {"a"}, 0)}, {{"a", DeviceId(1)}}),
              HasSubstr("'a' is locked there, and --pin wants it on dev1"));
  LockedStage larger = locked_stage(toy, "0", {"a"}, 0);
  larger.stage.micro_batch = BatchSize(2);
  EXPECT_THAT(conflict({larger}), HasSubstr("is locked with micro-batches of 2"));
  EXPECT_EQ(conflict({locked_stage(toy, "0", {"b"}, 0)}), "none");
}

TEST(Locked, TooFewDevicesForTheRestIsAReason) {
  const Toy toy(kLine, kThreeDevices, 4);
  Problem problem = toy.problem();
  problem.locked = {locked_stage(toy, "0", {"b"}, 0), locked_stage(toy, "1", {"c"}, 1),
                    locked_stage(toy, "2", {"d"}, 2)};
  Context context;
  const Outcome outcome = keep_locked(problem, {}, context);
  EXPECT_EQ(outcome.status, Status::kInfeasible);
  EXPECT_THAT(outcome.why, HasSubstr("leave 0 devices for the rest, which needs at least 2"));
}

TEST(Locked, RandomStagesOfRandomGraphsAreKept) {
  Rng rng(3);
  int kept = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const std::size_t n = 4 + rng.below(5);
    std::string text = "x = input() : f32[b]\nw = parameter(w) : f32[1]\n";
    std::vector<std::string> names{"x"};
    for (std::size_t i = 0; i < n; ++i) {
      const std::string name = "h" + std::to_string(i);
      text += name + " = f(" + names[rng.below(names.size())] + ", " + names[rng.below(names.size())] +
              ", w) : f32[b] @class=c" + std::to_string(1 + rng.below(6)) + "\n";
      names.push_back(name);
    }
    const Toy toy(text, kThreeDevices, 4);
    Problem problem = toy.problem();
    const std::size_t first = rng.below(n), last = first + rng.below(n - first);
    std::vector<std::string> operators(names.begin() + 1 + static_cast<std::ptrdiff_t>(first),
                                       names.begin() + 2 + static_cast<std::ptrdiff_t>(last));
    problem.locked = {locked_stage(toy, "kept", operators, rng.below(3))};
    if (!locked_conflicts(problem).empty()) continue;
    Context context;
    const Outcome outcome = keep_locked(problem, {}, context);
    if (!outcome.plan) continue;
    ++kept;
    toy.simulated(outcome);
    const auto& plan = std::get<PipelinePlan>(*outcome.plan);
    EXPECT_TRUE(std::any_of(plan.stages.begin(), plan.stages.end(), [&](const Stage& stage) {
      return stage.name == "kept" && stage.operators == problem.locked[0].stage.operators &&
             stage.replicas[0].devices == problem.locked[0].stage.replicas[0].devices;
    })) << text;
  }
  EXPECT_GT(kept, 30);
}

TEST(Automatic, IsNoSlowerThanThePlanToStartFrom) {
  const Toy toy(kTowers, kThreeDevices, 4);
  Context context;
  const Outcome best = branches(toy.problem(), {}, context);
  Problem problem = toy.problem();
  problem.start = best.plan;
  const std::vector<NamedPlanner> one{all_planners().front()};
  const Outcome outcome = automatic(problem, one, context);
  EXPECT_EQ(outcome.plan, best.plan);
  EXPECT_THAT(outcome.why, HasSubstr("planner start"));
}

}  // namespace
}  // namespace espalier
