// Preset tsan compiles this file: its suites run under ThreadSanitizer too.

// The judge, the budget and the threads of planners.

#include "espalier/planners/candidate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "espalier/base/rng.h"
#include "espalier/planners/automatic.h"
#include "espalier/planners/pipeline/branches.h"
#include "espalier/planners/pipeline/even.h"
#include "espalier/planners/pipeline/pipedream.h"
#include "espalier/planners/pipeline/single.h"
#include "espalier/planners/toy_for_tests.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Ruling = Verdict::Ruling;

constexpr const char* kTwoSteps =
    "x = input() : f32[b]\nw = parameter(w) : f32[1]\na = f(x, w) : f32[b] @class=c1\n"
    "b1 = f(a, w) : f32[b] @class=c2\nb2 = f(a, w) : f32[b] @class=c2\nloss = f(b1, b2, w) : f32[] "
    "@class=c1\n";

OperatorSet operators(const Toy& toy, const std::vector<std::string>& names) {
  std::vector<OperatorId> ids;
  for (const std::string& name : names) ids.push_back(*toy.graph.find_operator(name));
  return ids;
}

Verdict judged(const Problem& problem, const std::vector<StageDraft>& drafts,
               const OrderRule& rule = ScheduleKind::kOneFOneB) {
  Context context;
  return Judge(problem, context).consider(drafts, BatchSize(1), rule);
}

TEST(Judge, AVerdictSaysWhatSpeaksAgainstAPlan) {
  const Toy toy(kTwoSteps, kThreeDevices, 4);
  const StageDraft front{operators(toy, {"a", "b1"}), {DeviceId(0)}, {}};
  const StageDraft back{operators(toy, {"b2", "loss"}), {DeviceId(1)}, {}};
  const Verdict fits = judged(toy.problem(), {front, back});
  EXPECT_EQ(fits.ruling, Ruling::kFits);
  EXPECT_GT(fits.iteration, Duration());
  EXPECT_GT(fits.peak, Bytes());

  const Verdict pin = judged(toy.problem({{"b2", DeviceId(2)}}), {front, back});
  EXPECT_EQ(pin.ruling, Ruling::kPinBroken);
  EXPECT_EQ(pin.op, toy.graph.find_operator("b2"));

  StageDraft circle = front;
  circle.after = {1};
  EXPECT_EQ(judged(toy.problem(), {circle, back}).ruling, Ruling::kCircle);
  OrderRule for_three(ScheduleKind::kOneFOneB);
  for_three.group = {1, 1, 1};
  EXPECT_EQ(judged(toy.problem(), {front, back}, for_three).ruling, Ruling::kWrongOrders);
}

TEST(Judge, AVerdictNamesEachDeviceThatLacksMemory) {
  Toy toy(kTwoSteps, kThreeDevices, 4);
  ClusterParts parts = toy.cluster.parts();
  parts.devices[0].memory = parts.devices[2].memory = Bytes(5);
  toy.cluster = Cluster(parts);
  const Verdict verdict = judged(toy.problem(), {{operators(toy, {"a"}), {DeviceId(0)}, {}},
                                                 {operators(toy, {"b1"}), {DeviceId(1)}, {}},
                                                 {operators(toy, {"b2", "loss"}), {DeviceId(2)}, {}}});
  ASSERT_EQ(verdict.ruling, Ruling::kTooMuchMemory);
  ASSERT_EQ(verdict.excess.size(), 2U);
  EXPECT_EQ(verdict.excess[0].device, DeviceId(0));
  EXPECT_EQ(verdict.excess[1].device, DeviceId(2));
  EXPECT_EQ(verdict.excess[1].by, verdict.excess[1].needs - Bytes(5));
}

TEST(Judge, WhatBelongsTogetherAndWhatWritesBuffersIsNamed) {
  const Toy toy(
      "x = input() : f32[b]\nm = buffer(running) : f32[1]\nw = parameter(w) : f32[1]\n"
      "n = norm(x, m, w) : f32[b] @mutates=m @class=c8\nk = f(n, w) : f32[b] @class=c1 @colocate=4\n"
      "loss = f(k, w) : f32[] @class=c1 @colocate=4\n",
      kThreeDevices, 6);
  const Verdict torn = judged(toy.problem(), {{operators(toy, {"n", "k"}), {DeviceId(0)}, {}},
                                              {operators(toy, {"loss"}), {DeviceId(1)}, {}}});
  EXPECT_EQ(torn.ruling, Ruling::kTornApart);
  EXPECT_EQ(torn.op, toy.graph.find_operator("k"));
  const std::vector<StageDraft> replicas{
      {operators(toy, {"n", "k", "loss"}), {DeviceId(0), DeviceId(1)}, {}}};
  const Verdict writes = judged(toy.problem(), replicas);
  EXPECT_EQ(writes.ruling, Ruling::kReplicatedWrites);
  EXPECT_EQ(writes.op, toy.graph.find_operator("n"));
}

TEST(Judge, AMissingCellIsAVerdict) {
  Toy toy(kTwoSteps, kThreeDevices, 4);
  CostTableParts parts = toy.costs.parts();
  std::erase_if(parts.rows, [](const CostRow& row) { return row.op_class == "c2"; });
  toy.costs = CostTable(parts);
  const Verdict verdict =
      judged(toy.problem(), {{operators(toy, {"a", "b1", "b2", "loss"}), {DeviceId(0)}, {}}});
  ASSERT_EQ(verdict.ruling, Ruling::kForbidden);
  EXPECT_EQ(verdict.forbidden->op, *toy.graph.find_operator("b1"));
}

TEST(Judge, AWholePlanIsJudgedAsItsDraftsAre) {
  const Toy toy(kTwoSteps, kThreeDevices, 4);
  const Problem problem = toy.problem();
  const std::vector<StageDraft> drafts{{operators(toy, {"a", "b2"}), {DeviceId(1)}, {}},
                                       {operators(toy, {"b1"}), {DeviceId(0)}, {}},
                                       {operators(toy, {"loss"}), {DeviceId(2)}, {}}};
  Context context;
  Judge judge(problem, context);
  const Verdict verdict = judge.consider(drafts, BatchSize(1), ScheduleKind::kOneFOneB);
  const Outcome outcome = judge.outcome();
  EXPECT_EQ(Judge(problem, context).consider(*outcome.plan), verdict);
  EXPECT_EQ(Judge(toy.problem({{"b1", DeviceId(2)}}), context).consider(*outcome.plan).ruling,
            Ruling::kPinBroken);
  EXPECT_EQ(outcome.stats.evaluations, 1U);
}

// Random cuts of a chain over three devices, many of them equal in time.
std::optional<Proposal> random_proposal(const Toy& toy, std::uint64_t seed) {
  Rng rng(seed);
  if (rng.below(10) == 0) return std::nullopt;
  const std::size_t n = toy.graph.operators().size();
  const std::size_t first = 1 + rng.below(n - 1);
  Proposal proposal{{}, BatchSize(1), ScheduleKind::kOneFOneB};
  const std::size_t device = rng.below(3);
  proposal.stages.push_back(
      {OperatorSet(std::vector<OperatorRun>{{0, narrow(first - 1)}}), {DeviceId(device)}, {}});
  proposal.stages.push_back({OperatorSet(std::vector<OperatorRun>{{narrow(first), narrow(n - 1)}}),
                             {DeviceId((device + 1 + rng.below(2)) % 3)},
                             {}});
  return proposal;
}

TEST(Judge, AnyNumberOfThreadsKeepsWhatOneWould) {
  std::string text = "x = input() : f32[b]\nw = parameter(w) : f32[1]\nt0 = f(x, w) : f32[b] @class=c1\n";
  for (int i = 1; i < 12; ++i) {
    text += "t" + std::to_string(i) + " = f(t" + std::to_string(i - 1) + ", w) : f32[b] @class=c1\n";
  }
  const Toy toy(text + "loss = f(t11, w) : f32[] @class=c1\n", kThreeDevices, 4);
  const Problem problem = toy.problem();
  for (const std::uint64_t first : {0, 1000, 2000}) {
    Context serial;
    Judge one_by_one(problem, serial);
    for (std::uint64_t i = 0; i < 200; ++i) {
      if (const auto proposal = random_proposal(toy, first + i)) one_by_one.consider(*proposal);
    }
    const Outcome expected = one_by_one.outcome();
    for (const std::size_t threads : {1, 2, 3, 7}) {
      ThreadPool pool(threads);
      Context context{.pool = &pool};
      Judge judge(problem, context);
      judge.consider_each(100, [&](std::size_t i, Context&) { return random_proposal(toy, first + i); });
      judge.consider_each(100,
                          [&](std::size_t i, Context&) { return random_proposal(toy, first + 100 + i); });
      const Outcome outcome = judge.outcome();
      EXPECT_EQ(outcome.plan, expected.plan) << threads;
      EXPECT_EQ(outcome.stats, expected.stats) << threads;
      EXPECT_EQ(judge.best(), one_by_one.best());
    }
  }
}

TEST(Context, SharesOfTheBudgetDoNotDependOnThreads) {
  for (const std::size_t threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    Context context{.budget = {.max_states = 100}, .pool = &pool};
    for (int i = 0; i < 9; ++i) context.take_state();
    std::vector<std::uint64_t> taken(4);  // of 91: 23, 23, 23, 22
    context.for_each(4, [&](std::size_t i, Context& own) {
      while (taken[i] < (i == 1 ? 5 : 1000) && own.take_state()) ++taken[i];
    });
    EXPECT_THAT(taken, ElementsAre(23, 5, 23, 22));
    EXPECT_EQ(context.states, 9U + 73U);
    EXPECT_TRUE(context.budget_spent);
  }
}

std::vector<NamedPlanner> some_planners() {
  return {{"single", [](const Problem& p, Context& c) { return single(p, {}, c); }, 0},
          {"even", [](const Problem& p, Context& c) { return even(p, {}, c); }, 0},
          {"pipedream", [](const Problem& p, Context& c) { return pipedream(p, {}, c); }},
          {"branches", [](const Problem& p, Context& c) { return branches(p, {}, c); }}};
}

TEST(Automatic, TheBudgetIsThatOfTheCall) {
  const Toy toy(kTwoSteps, kThreeDevices, 4);
  for (const std::uint64_t budget : {0, 1, 2, 7, 50, 1000000}) {
    Context context{.budget = {.max_states = budget}};
    std::uint64_t states = 0;
    for (const Candidate& candidate : run_all(toy.problem(), some_planners(), context)) {
      states += candidate.outcome.stats.states;
    }
    EXPECT_LE(states, budget);
    EXPECT_EQ(context.states, states);
  }
}

TEST(PipeDream, TheBudgetIsThatOfThePlannerNotOfEachSearch) {
  Toy toy(kTwoSteps, kThreeDevices, 8);
  toy.training.micro_batches = {BatchSize(1), BatchSize(2), BatchSize(4)};
  Context whole;
  const Outcome all = pipedream(toy.problem(), {}, whole);
  ASSERT_GT(all.stats.states, 6U);
  Context context{.budget = {.max_states = all.stats.states / 2}};
  const Outcome some = pipedream(toy.problem(), {}, context);
  EXPECT_LE(some.stats.states, all.stats.states / 2);
  EXPECT_THAT(some.why, HasSubstr("states was spent"));
}

TEST(Automatic, AnyNumberOfThreadsFindsTheSame) {
  const Toy toy(kTwoSteps, kThreeDevices, 4);
  const Problem problem = toy.problem();
  Context serial;
  const std::vector<Candidate> expected = run_all(problem, some_planners(), serial);
  for (const std::size_t threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    Context context{.pool = &pool};
    const std::vector<Candidate> candidates = run_all(problem, some_planners(), context);
    ASSERT_EQ(candidates.size(), expected.size());
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      EXPECT_EQ(candidates[i].outcome.plan, expected[i].outcome.plan);
      EXPECT_EQ(candidates[i].outcome.stats, expected[i].outcome.stats);
      EXPECT_EQ(candidates[i].outcome.why, expected[i].outcome.why);
      EXPECT_EQ(candidates[i].simulated, expected[i].simulated);
    }
    EXPECT_EQ(context.states, serial.states);
  }
}

TEST(Automatic, EarlyPlannersBeginFirstAndKeepTheirPlaces) {
  const Toy toy(kTwoSteps, kThreeDevices, 4);
  std::vector<NamedPlanner> planners = some_planners();
  planners[0].early = planners[2].early = true;
  std::vector<std::size_t> begun;
  PlannerCalls calls;
  calls.begun = [&](std::size_t i) { begun.push_back(i); };
  Context context;
  const std::vector<Candidate> candidates = run_all(toy.problem(), planners, context, calls);
  EXPECT_THAT(begun, ElementsAre(0, 2, 1, 3));
  for (std::size_t i = 0; i < planners.size(); ++i) EXPECT_EQ(candidates[i].name, planners[i].name);
}

TEST(Automatic, WhoEndsTheSearchKeepsTheBestSoFar) {
  const Toy toy(kTwoSteps, kThreeDevices, 4);
  for (const std::size_t threads : {1, 2, 3, 7}) {
    std::atomic<bool> cancelled = false;
    std::optional<Duration> best;
    SearchWatch watch([&](const SearchProgress& progress) {
      if (!progress.best) return;
      best = progress.best;
      cancelled = true;
    });
    ThreadPool pool(threads);
    Context context{.pool = &pool, .cancelled = &cancelled, .watch = &watch};
    const Outcome outcome = automatic(toy.problem(), some_planners(), context);
    ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
    EXPECT_TRUE(outcome.interrupted);
    EXPECT_THAT(outcome.why, StartsWith("interrupted: the best plan found so far is of planner "));
    EXPECT_THAT(outcome.why, HasSubstr(to_text(*best)));
  }
}

TEST(Automatic, EndedBeforeItBeginsItSaysSo) {
  const Toy toy(kTwoSteps, kThreeDevices, 4);
  const std::atomic<bool> cancelled = true;
  Context context{.cancelled = &cancelled};
  const Outcome outcome = automatic(toy.problem(), some_planners(), context);
  EXPECT_EQ(outcome.status, Status::kInterrupted);
  EXPECT_FALSE(outcome.plan.has_value());
  for (const NamedPlanner& planner : some_planners()) {
    const Outcome own = planner.plan(toy.problem(), context);
    EXPECT_NE(own.status, Status::kInfeasible) << planner.name << ": nobody knows";
  }
}

TEST(SearchWatch, TheListenerHearsOfEachBetterPlanAndTheGap) {
  std::vector<std::string> heard;
  SearchWatch watch([&](const SearchProgress& progress) {
    heard.push_back(std::string(progress.planner) + " " + std::to_string(progress.fraction).substr(0, 4) +
                    (progress.best ? " " + to_text(*progress.best) : "") +
                    (progress.gap() ? " " + std::to_string(*progress.gap()).substr(0, 4) : ""));
  });
  watch.speak("even", 0.5, 0);
  watch.found(milliseconds(40));
  watch.found(milliseconds(41));
  watch.bounded(milliseconds(20));
  watch.speak("even", 0.5, 1);
  watch.found(milliseconds(30));
  EXPECT_THAT(heard, ElementsAre("even 0.00", "even 0.00 40.0 ms", "even 0.00 40.0 ms 1.00",
                                 "even 0.50 40.0 ms 1.00", "even 0.50 30.0 ms 0.50"));
}

}  // namespace
}  // namespace espalier
