#include "espalier/planners/pipeline/ahead_of_sums.h"

#include <gmock/gmock.h>

#include "espalier/plan/plan.h"
#include "espalier/planners/draft.h"
#include "espalier/planners/toy_for_tests.h"

namespace espalier {
namespace {

using ::testing::IsEmpty;

constexpr const char* kThreeOnWires =
    "kind gpu 16GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\ngroup network latency=1us lanes=unlimited\n"
    "device dev0 gpu in network\ndevice dev1 gpu in network\ndevice dev2 gpu in network\n";

// 40 micro-batches through 6 + 12 ms on one device, then 5 + 10 ms on two, whose sum of 160 MB takes long.
Toy long_sum() {
  return Toy(
      "x = input() : f32[b,1024]\nw = parameter(w) : f32[1]\nv = parameter(v) : f32[40000000]\n"
      "h = f(x, w) : f32[b,1024] @class=c6\ny = f(h, v) : f32[b,1024] @class=c4\n"
      "loss = f(y, w) : f32[] @class=c1\nreturn loss\n",
      kThreeOnWires, 40);
}

PipelinePlan one_and_two(const Toy& toy, const OrderRule& rule) {
  const std::vector<StageDraft> stages{
      {OperatorSet{OperatorId(0)}, {DeviceId(0)}, {}},
      {OperatorSet{OperatorId(1), OperatorId(2)}, {DeviceId(1), DeviceId(2)}, {}}};
  return *complete_plan(toy.graph, stages, toy.training.batch, BatchSize(1), rule);
}

TEST(AheadOfSums, TheSumBeginsEarlierAndTheStepIsShorter) {
  const Toy toy = long_sum();
  const Problem problem = toy.problem();
  Context context;
  Judge judge(problem, context);
  const PipelinePlan plan = one_and_two(toy, {});
  const Duration before = judge.consider(Plan(plan)).iteration;
  let_best_go_ahead_of_sums(problem, judge, context);
  const Outcome outcome = judge.outcome();
  EXPECT_LT(*judge.best(), before);
  const auto& better = std::get<PipelinePlan>(*outcome.plan);
  EXPECT_THAT(check_plan(toy.graph, toy.cluster, better), IsEmpty());
  EXPECT_GE(better.stages[0].in_flight, plan.stages[0].in_flight + 8);
  EXPECT_EQ(better.stages[1].in_flight, plan.stages[1].in_flight);
  EXPECT_EQ(toy.simulated(outcome), *judge.best());
}

TEST(AheadOfSums, NothingIsTriedForOtherOrdersOrWithoutTasks) {
  const Toy toy = long_sum();
  const Problem problem = toy.problem();
  Context context;
  Judge judge(problem, context);
  const auto tasks = [&](const OrderRule& rule, std::uint64_t most) {
    const PipelinePlan plan = one_and_two(toy, rule);
    const Duration fastest = judge.consider(Plan(plan)).iteration;
    return go_ahead_of_sums(problem, plan, fastest, std::nullopt, most, judge, context);
  };
  OrderRule gpipe;
  gpipe.kind = ScheduleKind::kGPipe;
  EXPECT_EQ(tasks(gpipe, 1'000'000), 0U);
  EXPECT_EQ(tasks({}, 319), 0U);
  EXPECT_EQ(tasks({}, 320), 320U);  // two stages of 40 micro-batches, four tasks each
}

}  // namespace
}  // namespace espalier
