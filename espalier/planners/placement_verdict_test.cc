// Preset tsan compiles this file: its suites run under ThreadSanitizer too.

// The judge takes placements beside plans of stages.

#include <gtest/gtest.h>

#include "espalier/planners/candidate.h"
#include "espalier/planners/shortage.h"
#include "espalier/planners/toy_for_tests.h"
#include "espalier/sim/placement_judge.h"

namespace espalier {
namespace {

constexpr const char* kFork =
    "x = input() : f32[b]\nw = parameter(w) : f32[1]\na = f(x, w) : f32[b] @class=c1\n"
    "b1 = f(a, w) : f32[b] @class=c2\nb2 = f(a, w) : f32[b] @class=c2\nloss = f(b1, b2, w) : f32[] "
    "@class=c1\n";

TEST(JudgeOfPlacements, SaysWhatTheSimulatorSaysOfTheirFragments) {
  const Toy toy(kFork, kThreeDevices, 4);
  const Placement placement{{DeviceId(0), DeviceId(0), DeviceId(1), DeviceId(0)}};
  const Problem problem = toy.problem();
  Context context;
  Judge judge(problem, context);
  const Verdict verdict = judge.consider(Plan(placement));
  FragmentOptions options;
  options.micro_batch = problem.training.micro_batches.back();
  const Evaluation simulated =
      judge_placement(problem.graph, problem.cluster, problem.costs, problem.training, placement, options);
  ASSERT_TRUE(verdict.fits());
  EXPECT_EQ(verdict.iteration, simulated.iteration);
  EXPECT_EQ(judge.evaluations(), 1U);
  const Outcome outcome = judge.outcome();
  ASSERT_TRUE(outcome.plan.has_value());
  EXPECT_EQ(std::get<Placement>(*outcome.plan), placement);

  Context other;
  const Problem pinned = toy.problem({{"b2", DeviceId(2)}});
  const Verdict broken = Judge(pinned, other).consider(Plan(placement));
  EXPECT_EQ(broken.ruling, Verdict::Ruling::kPinBroken);
  EXPECT_EQ(broken.op, toy.graph.find_operator("b2"));
}

TEST(JudgeOfPlacements, KeepsTheOneThatComesClosest) {
  Toy toy(kFork, kThreeDevices, 4);
  ClusterParts parts = toy.cluster.parts();
  for (Device& device : parts.devices) device.memory = Bytes(6);
  toy.cluster = Cluster(parts);
  const Problem problem = toy.problem();
  Context context;
  Judge judge(problem, context);
  const Placement together{{DeviceId(0), DeviceId(0), DeviceId(0), DeviceId(0)}};
  const Placement apart{{DeviceId(0), DeviceId(0), DeviceId(1), DeviceId(0)}};
  const Verdict first = judge.consider(Plan(together)), second = judge.consider(Plan(apart));
  ASSERT_EQ(first.ruling, Verdict::Ruling::kTooMuchMemory);
  ASSERT_EQ(second.ruling, Verdict::Ruling::kTooMuchMemory);
  const Outcome outcome = judge.outcome();
  EXPECT_EQ(outcome.status, Status::kInfeasible);
  ASSERT_TRUE(outcome.closest.has_value());
  EXPECT_EQ(outcome.closest->pipeline(), nullptr);
  EXPECT_EQ(outcome.closest->lack(), std::min(sum_of(first.excess), sum_of(second.excess)));
  const bool is_first = sum_of(first.excess) <= sum_of(second.excess);
  EXPECT_EQ(outcome.closest->plan, Plan(is_first ? together : apart));
  EXPECT_EQ(outcome.why.rfind("nothing fits: the closest placement needs ", 0), 0U) << outcome.why;
  // The shortage speaks of the same devices, and a remedy was judged to fit.
  const Shortage shortage = shortage_of(problem, outcome.closest->plan, "hand");
  EXPECT_EQ(shortage.lack(), outcome.closest->lack());
  const auto again = [&](const Problem& changed) {
    Context own;
    Judge fresh(changed, own);
    fresh.consider(Plan(together));
    return fresh.outcome();
  };
  const std::vector<Remedy> remedies = find_remedies(problem, outcome.closest->plan, shortage, again);
  EXPECT_TRUE(std::any_of(remedies.begin(), remedies.end(),
                          [](const Remedy& remedy) { return remedy.kind == Remedy::Kind::kMemory; }));
}

}  // namespace
}  // namespace espalier
