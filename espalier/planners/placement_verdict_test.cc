// The judge takes placements beside plans of stages.

#include <gtest/gtest.h>

#include "espalier/planners/candidate.h"
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

}  // namespace
}  // namespace espalier
