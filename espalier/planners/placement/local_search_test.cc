#include "espalier/planners/placement/local_search.h"

#include <gmock/gmock.h>

#include <atomic>

#include "espalier/planners/placement/default_search.h"
#include "espalier/planners/placement/descent.h"
#include "espalier/planners/placement/guided.h"
#include "espalier/planners/placement/search_cases_for_tests.h"

namespace espalier::placement {
namespace {

Placed searched(const Instance& instance, const Rules& rules, SearchMethod method, std::uint64_t budget,
                std::size_t threads = 1) {
  ThreadPool pool(threads);
  Context context;
  context.budget.max_states = budget;
  context.pool = &pool;
  PlacementSearchOptions options;
  options.method = method;
  Placed placed = placement_search(instance, rules, options, context);
  EXPECT_LE(context.states, budget);
  return placed;
}

class EveryMethod : public ::testing::TestWithParam<SearchMethod> {};
INSTANTIATE_TEST_SUITE_P(All, EveryMethod, ::testing::ValuesIn(search_methods()), [](const auto& method) {
  std::string name(to_text(method.param));
  std::erase(name, '-');
  return name;
});

TEST_P(EveryMethod, NeverBeatsTheBestAndSaysWhatTheEngineSays) {
  const SmallCases cases = search_small_cases([](const Instance& instance, const Rules& rules) {
    return searched(instance, rules, GetParam(), 600);
  });
  EXPECT_GT(cases.answered, 30);
  EXPECT_GT(10 * cases.best, 8 * cases.answered) << cases.best << " of " << cases.answered;
}

TEST_P(EveryMethod, SameBytesForAnyNumberOfThreads) {
  Rng rng(11);
  const Instance instance = random_case({.tasks = 60, .devices = 3, .memory = 220}, rng);
  const Placed one = searched(instance, {}, GetParam(), 1'500);
  for (const std::size_t threads : {2U, 3U, 7U}) {
    const Placed several = searched(instance, {}, GetParam(), 1'500, threads);
    EXPECT_EQ(several.assignment, one.assignment);
    EXPECT_EQ(several.stats, one.stats);
  }
}

TEST(GuidedAccept, GoesOnFromAKickWhereItStandsStill) {
  int better = 0, worse = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Rng rng(seed);
    const Instance instance = random_case({.tasks = 30, .devices = 3}, rng);
    const Engine engine(instance, {});
    const Neighbourhood around(instance);
    const auto found = [&](std::uint64_t patience) {
      Context context;
      context.budget.max_states = 3'000;
      Walk walk(engine, around, Assignment(instance.units(), DeviceId(0)), context);
      Rng own(seed);
      guided_accept(walk, own, patience);
      EXPECT_EQ(context.states, 3'000U);
      return walk.best()->time;
    };
    const Duration patient = found(instance.units()), endless = found(kEndlessPatience);
    better += patient < endless ? 1 : 0;
    worse += patient > endless ? 1 : 0;
  }
  EXPECT_GT(better, 2 * worse) << better << " better, " << worse << " worse";
}

TEST(PlacementSearch, IsNoWorseThanItsStarts) {
  Rng rng(13);
  const Instance instance = random_case({.tasks = 80, .devices = 4}, rng);
  const Engine engine(instance, {});
  Scratch scratch;
  for (const std::uint64_t budget : {5U, 50U, 500U}) {
    const Placed placed = searched(instance, {}, SearchMethod::kDefault, budget);
    for (const Assignment& start : simple_starts(instance))
      EXPECT_LE(placed.estimate.value(), engine.evaluate(start, scratch).time);
  }
}

TEST(PlacementSearch, AnInterruptedOneGivesItsBestStart) {
  Rng rng(17);
  const Instance instance = random_case({.tasks = 40, .devices = 2}, rng);
  const std::atomic<bool> cancelled = true;
  Context context;
  context.cancelled = &cancelled;
  EXPECT_TRUE(default_placement_search(instance, {}, {}, context).assignment);
}

TEST(PlacementSearch, ComesOutOfStartsThatDoNotFit) {
  // On one device all starts but the runs hold too much; what is found fits.
  Rng rng(19);
  const Instance instance = random_case({.tasks = 40, .devices = 4, .memory = 90}, rng);
  const Placed placed = searched(instance, {}, SearchMethod::kAccept, 3'000);
  ASSERT_TRUE(placed.assignment) << placed.why;
  EXPECT_TRUE(timeline(Engine(instance, {}), *placed.assignment).evaluated.fits);
}

TEST(PlacementSearch, RanksMayTakeThePlaceOfPriorities) {
  Rng rng(23);
  const Instance instance = random_case({.tasks = 60, .devices = 3}, rng);
  Context context;
  context.budget.max_states = 2'000;
  PlacementSearchOptions options;
  options.ranks = PlacementSearchOptions::Ranks::kRecomputed;
  const Placed placed = placement_search(instance, {}, options, context);
  const Engine engine(instance, {}, placed.orders);
  Scratch scratch;
  EXPECT_EQ(engine.evaluate(placed.assignment.value(), scratch).time, placed.estimate);
}

TEST(PlacementSearch, KeepsTheBetterOfTheOrdersThatItIsGiven) {
  int first = 0, second = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Rng rng(seed);
    const Instance instance = random_case({.tasks = 40, .devices = 3}, rng);
    DeviceOrders random;  // a legal order that has nothing to do with the graph's
    for (std::size_t t = 0; t < instance.tasks(); ++t)
      random.priority.push_back(static_cast<std::uint32_t>(rng.below(1'000)));
    const auto found = [&](std::vector<DeviceOrders> orders, std::size_t threads) {
      ThreadPool pool(threads);
      Context context;
      context.pool = &pool;
      context.budget.max_states = 2'000;
      PlacementSearchOptions options;
      options.orders = std::move(orders);
      Placed placed = placement_search(instance, {}, options, context);
      EXPECT_LE(context.states, 2'000U);
      Scratch scratch;
      EXPECT_EQ(Engine(instance, {}, placed.orders).evaluate(placed.assignment.value(), scratch).time,
                placed.estimate);
      return placed;
    };
    const std::vector<DeviceOrders> both{{}, random};
    const Placed placed = found(both, 1);
    EXPECT_EQ(found(both, 3).assignment, placed.assignment);
    ++(placed.orders.priority.empty() ? first : second);
    // The better start by each order is a start.
    for (const DeviceOrders& orders : both) {
      const Engine engine(instance, {}, orders);
      Scratch scratch;
      for (const Assignment& start : simple_starts(instance))
        EXPECT_LE(*placed.estimate, engine.evaluate(start, scratch).time);
    }
  }
  EXPECT_GT(first, 3);
  EXPECT_GT(second, 3);
}

TEST(CriticalTasks, EndWithTheLastTaskAndBeginWithOneThatWaitsForNothing) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Rng rng(seed);
    const Instance instance = random_case({.tasks = 30, .devices = 3}, rng);
    const Engine engine(instance, some_rules(seed));
    const Assignment at = simple_starts(instance).back();
    const Timeline line = timeline(engine, at);
    const std::vector<TaskId> path = critical_tasks(instance, at, line);
    ASSERT_FALSE(path.empty());
    EXPECT_EQ(line.end[path.back().index()], line.evaluated.time);
    EXPECT_EQ(line.start[path.front().index()], Duration());
    for (std::size_t i = 1; i < path.size(); ++i)
      EXPECT_LE(line.end[path[i - 1].index()], line.start[path[i].index()]);
  }
}

TEST(Moves, ChangesMoveEachUnitOnceToWhereItMayStand) {
  Rng rng(29);
  const Instance instance = random_case({.tasks = 40, .devices = 3}, rng);
  const Neighbourhood around(instance);
  const Assignment at = simple_starts(instance).back();
  for (int i = 0; i < 2'000; ++i) {
    std::vector<bool> seen(instance.units());
    for (const Incremental::Move& move :
         random_change(around, at, static_cast<MoveKind>(rng.below(kMoveKinds)), 8, rng)) {
      EXPECT_FALSE(seen[move.unit.index()]);
      seen[move.unit.index()] = true;
      EXPECT_NE(at[move.unit.index()], move.device);
      EXPECT_TRUE(around.may_stand(move.unit, move.device));
    }
  }
}

TEST(Moves, ExponentialHasMeanOne) {
  Rng rng(31);
  double sum = 0;
  for (int i = 0; i < 100'000; ++i) sum += exponential(rng);
  EXPECT_NEAR(sum / 100'000, 1, 0.02);
}

}  // namespace
}  // namespace espalier::placement
