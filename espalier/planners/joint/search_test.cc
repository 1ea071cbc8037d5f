// What the joint search begins with, and how it divides its states among micro-batch sizes.

#include "espalier/planners/joint/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "espalier/planners/joint/joint.h"
#include "espalier/planners/pipeline/graphpipe.h"
#include "espalier/planners/toy_for_tests.h"

namespace espalier::joint {
namespace {

// Two towers of `layers` layers, 20 ms forward and 40 back each, and a head of `head`.
std::string towers_text(int layers, const std::string& head) {
  std::string text = "batch 1..64\nx = input() : f32[b]\ny = input() : f32[b]\nw = parameter(w) : f32[1]\n";
  for (const std::string tower : {"i", "t"}) {
    std::string below = tower == "i" ? "x" : "y";
    for (int layer = 0; layer < layers; ++layer) {
      const std::string name = tower + std::to_string(layer);
      text += name + " = f(" + below + ", w) : f32[b] @class=c20\n";
      below = name;
    }
  }
  const std::string last = std::to_string(layers - 1);
  return text + "loss = head(i" + last + ", t" + last + ") : f32[] @class=" + head + "\nreturn loss\n";
}

// Each tower on a device of its own, the head with the second.
Proposal towers_apart(const Toy& toy) {
  Proposal plan{.stages = {}, .micro_batch = BatchSize(1), .schedule = ScheduleKind::kOneFOneB};
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{"i0"}, std::vector<std::string>{"t0", "loss"}}) {
    std::vector<OperatorId> operators;
    for (const std::string& name : names) operators.push_back(*toy.graph.find_operator(name));
    plan.stages.push_back({OperatorSet(operators), {DeviceId(plan.stages.size())}, {}});
  }
  return plan;
}

// One micro-batch; a message takes 1 ms. With the head in its stage the second tower waits for the first,
// there and back: 20 + 1 + 21 + 42 + 1 + 40 = 125 ms. Apart, forwards are side by side, and the first tower's
// gradient is there 1 ms after the head's backward: 20 + 1 + 1 + 2 + 1 + 40 = 65 ms.
TEST(LightJoin, ApartFromATowerLetsTheTowersRunSideBySide) {
  const Toy toy(towers_text(1, "c1"), kThreeDevices, 1);
  const Problem problem = toy.problem();
  const Space space(problem);
  const Proposal plan = towers_apart(toy);
  const std::optional<Proposal> apart = with_light_joins_apart(space, plan);
  ASSERT_TRUE(apart.has_value());
  ASSERT_EQ(apart->stages.size(), 3U);
  EXPECT_EQ(apart->stages[2].operators, OperatorSet({*toy.graph.find_operator("loss")}));
  EXPECT_EQ(apart->stages[2].devices, plan.stages[1].devices);
  Context context;
  Judge judge(problem, context);
  EXPECT_EQ(judge.consider(plan).iteration, milliseconds(125));
  EXPECT_EQ(judge.consider(*apart).iteration, milliseconds(65));
}

TEST(LightJoin, OfMoreThanATwentiethOfTheStageStaysWhereItIs) {
  const Toy toy(towers_text(1, "c2"), kThreeDevices, 1);
  const Problem problem = toy.problem();
  EXPECT_FALSE(with_light_joins_apart(Space(problem), towers_apart(toy)).has_value());
}

std::vector<BatchSize> powers_of_two(std::int64_t most) {
  std::vector<BatchSize> sizes;
  for (std::int64_t size = 1; size <= most; size *= 2) sizes.push_back(BatchSize(size));
  return sizes;
}

// A micro-batch of up to eight takes as long as one sample.
Toy with_free_samples(Toy toy) {
  CostTableParts parts = toy.costs.parts();
  for (CostRow& row : parts.rows) row.points.push_back({BatchSize(8), row.points.front().cost});
  toy.costs = CostTable(parts);
  return toy;
}

// Two towers of three layers, micro-batches of 1 to 8: the largest is the best.
struct Sizes {
  Toy toy = with_free_samples(Toy(towers_text(3, "c1"), kThreeDevices, 8, powers_of_two(8)));

  Outcome found(Context& context) const { return graphpipe(toy.problem(), {}, context); }
};

Searched searched(const Problem& problem, const Outcome& from, Context& context) {
  const Space space(problem);
  Judge judge(problem, context);
  const std::optional<Proposal> start = proposal_of(space, std::get<PipelinePlan>(*from.plan));
  EXPECT_TRUE(start.has_value());
  return search(space, {*start}, {}, judge, context);
}

TEST(SuccessiveHalving, TheFastestSizeClimbsInAllRounds) {
  const Sizes sizes;
  const Problem problem = sizes.toy.problem();
  Context planning, context{.budget = {.max_states = 100'000}};
  const Searched end = searched(problem, sizes.found(planning), context);
  ASSERT_FALSE(end.best.empty());
  const Space space(problem);
  const auto best = static_cast<std::size_t>(
      std::find(space.sizes().begin(), space.sizes().end(), end.best.front().micro_batch) -
      space.sizes().begin());
  const std::uint64_t of_best = end.states_of_size.at(best);
  EXPECT_GE(std::count_if(end.states_of_size.begin(), end.states_of_size.end(),
                          [&](std::uint64_t states) { return 2 * states < of_best; }),
            2)
      << "the half that the first round left out";
  EXPECT_GT(*std::min_element(end.states_of_size.begin(), end.states_of_size.end()), 0U);
}

TEST(SuccessiveHalving, TakesNoMoreThanItsPartOfTheBudgetAndNothingBeyondIt) {
  const Sizes sizes;
  const Problem problem = sizes.toy.problem();
  Context planning;
  const Outcome from = sizes.found(planning);
  for (const std::uint64_t budget : {1'000, 5'000, 30'000, 200'000}) {
    Context context{.budget = {.max_states = budget}};
    const Searched end = searched(problem, from, context);
    EXPECT_LE(context.states, budget);
    const std::uint64_t climbed =
        std::accumulate(end.states_of_size.begin(), end.states_of_size.end(), std::uint64_t{0});
    EXPECT_LE(climbed, context.states);
  }
}

TEST(SuccessiveHalving, DoesTheSameOnAnyNumberOfThreads) {
  const Sizes sizes;
  const Problem problem = sizes.toy.problem();
  Context planning;
  const Outcome from = sizes.found(planning);
  std::optional<Searched> one;
  for (const std::size_t threads : {1, 2}) {
    ThreadPool pool(threads);
    Context context{.budget = {.max_states = 100'000}, .pool = &pool};
    const Searched end = searched(problem, from, context);
    if (!one) one = end;
    EXPECT_EQ(one->best, end.best);
    EXPECT_EQ(one->states_of_size, end.states_of_size);
  }
}

// The best plan of the other sizes is kept beside the best of all.
TEST(OtherSizes, OfAnOutcomeAreTheFastestOfEachSizeButThePlans) {
  const Sizes sizes;
  Context context;
  const Outcome outcome = sizes.found(context);
  ASSERT_EQ(outcome.status, Status::kFeasible);
  const auto& best = std::get<PipelinePlan>(*outcome.plan);
  EXPECT_EQ(best.stages.front().micro_batch, BatchSize(8));
  ASSERT_FALSE(outcome.of_other_sizes.empty());
  const Problem problem = sizes.toy.problem();
  const Oracle& oracle = *problem.oracle;
  std::vector<BatchSize> met{best.stages.front().micro_batch};
  for (const PipelinePlan& plan : outcome.of_other_sizes) {
    EXPECT_THAT(met, ::testing::Not(::testing::Contains(plan.stages.front().micro_batch)));
    met.push_back(plan.stages.front().micro_batch);
    EXPECT_THAT(check_plan(sizes.toy.graph, sizes.toy.cluster, plan), ::testing::IsEmpty());
    const Oracle::Loan scratch(oracle);
    EXPECT_GE(oracle.evaluator().evaluate(plan, *scratch).iteration, sizes.toy.simulated(outcome));
  }
}

// A plan with other tokens than the usual ones is none that the search can change: only from the plan of
// another size does it find what is faster.
TEST(OtherSizes, LeadToAFasterPlanWhereTheBestOneLeadsNowhere) {
  const Toy toy(towers_text(3, "c1"), kThreeDevices, 4, powers_of_two(2));
  const Problem problem = toy.problem();
  PipelinePlan whole;
  whole.batch = BatchSize(4);
  Stage stage;
  stage.name = "all";
  for (std::size_t i = 0; i < toy.graph.operators().size(); ++i) stage.operators.push_back(OperatorId(i));
  stage.micro_batch = BatchSize(2);
  stage.replicas = {{{DeviceId(0)}, {0, 1}}};
  whole.stages = {stage};
  PipelinePlan other = whole;
  whole.tokens = TokenRule::kForwardOnly;
  other.stages[0].micro_batch = BatchSize(1);
  other.stages[0].replicas = {{{DeviceId(0)}, {0, 1, 2, 3}}};
  for (const bool with : {false, true}) {
    const NamedPlanner planner{"fixed", [&](const Problem& of, Context& context) {
                                 Judge judge(of, context);
                                 judge.consider(Plan(whole));
                                 Outcome outcome = judge.outcome();
                                 if (with) outcome.of_other_sizes = {other};
                                 return outcome;
                               }};
    Context context{.budget = {.max_states = 100'000}};
    const Outcome outcome = joint_search(problem, {planner}, {}, context);
    ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
    Outcome before = outcome;
    before.plan = whole;
    EXPECT_EQ(toy.simulated(outcome) < toy.simulated(before), with) << outcome.why;
  }
}

}  // namespace
}  // namespace espalier::joint
