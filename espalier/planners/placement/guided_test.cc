#include "espalier/planners/placement/guided.h"

#include <gmock/gmock.h>

#include "espalier/planners/placement/default_search.h"
#include "espalier/planners/placement/instance_for_tests.h"
#include "espalier/planners/placement/search_cases_for_tests.h"

namespace espalier::placement {
namespace {

// Rates a change by one of its figures alone.
ProposalGuide guide_by(ChangeFigures::Figure figure, float factor) {
  RatingNet::Net net{.middle = std::vector<float>(ChangeFigures::kCount),
                     .scale = std::vector<float>(ChangeFigures::kCount, 1),
                     .layers = {{.inputs = ChangeFigures::kCount,
                                 .units = 1,
                                 .weights = std::vector<float>(ChangeFigures::kCount),
                                 .offsets = {0}}}};
  net.layers[0].weights[figure] = factor;
  return ProposalGuide{RatingNet(std::move(net))};
}

Placed searched(const Instance& instance, const Rules& rules, const ProposalGuide* guide,
                std::uint64_t budget, std::size_t threads = 1) {
  ThreadPool pool(threads);
  Context context;
  context.budget.max_states = budget;
  context.pool = &pool;
  PlacementSearchOptions options;
  options.guide = guide;
  Placed placed = placement_search(instance, rules, options, context);
  EXPECT_LE(context.states, budget);
  return placed;
}

// Whatever the guide: it says what is judged, not what it is worth.
TEST(Proposals, NeverBeatTheBestAndSayWhatTheEngineSays) {
  const ProposalGuide sensible = guide_by(ChangeFigures::kBusiestThen, -1);
  const ProposalGuide foolish = guide_by(ChangeFigures::kBusiestThen, 1);
  for (const ProposalGuide* guide : {&sensible, &foolish, &usual_proposals()}) {
    const SmallCases cases = search_small_cases(
        [&](const Instance& instance, const Rules& rules) { return searched(instance, rules, guide, 200); });
    EXPECT_GT(cases.answered, 30);
    EXPECT_GT(10 * cases.best, 8 * cases.answered) << cases.best << " of " << cases.answered;
  }
}

TEST(Proposals, GiveTheSameBytesForAnyNumberOfThreads) {
  Rng rng(11);
  const Instance instance = random_case({.tasks = 60, .devices = 3, .memory = 220}, rng);
  const Placed one = searched(instance, {}, &usual_proposals(), 500);
  ASSERT_TRUE(one.assignment);
  for (const std::size_t threads : {2U, 3U, 7U}) {
    const Placed several = searched(instance, {}, &usual_proposals(), 500, threads);
    EXPECT_EQ(several.assignment, one.assignment);
    EXPECT_EQ(several.stats, one.stats);
  }
}

// Moves that put work on the device that is the busiest already are the last to help.
TEST(Proposals, AGuideDecidesWhatIsJudged) {
  const ProposalGuide good = guide_by(ChangeFigures::kBusiestThen, -1);
  const ProposalGuide bad = guide_by(ChangeFigures::kBusiestThen, 1);
  int better = 0, worse = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Rng rng(seed);
    const Instance instance = random_case({.tasks = 60, .devices = 4}, rng);
    const Engine engine(instance, {});
    const Neighbourhood around(instance);
    const auto found = [&](const ProposalGuide& guide) {
      Context context;
      context.budget.max_states = 150;
      Walk walk(engine, around, Assignment(instance.units(), DeviceId(0)), context);
      Rng own(seed);
      proposed_accept(walk, own, guide);
      EXPECT_EQ(context.states, 150U);
      return walk.best()->time;
    };
    const Duration by_good = found(good), by_bad = found(bad);
    better += by_good < by_bad ? 1 : 0;
    worse += by_good > by_bad ? 1 : 0;
  }
  EXPECT_GT(better, 3 * worse) << better << " better, " << worse << " worse";
}

// One unit that is slower elsewhere has one change: once that was judged the walk ends, for a state each.
TEST(Proposals, EndWhereNothingIsLeftToJudge) {
  InstanceForTests text;
  text.tasks = {{{10, 20}, {}, 0, 0}};
  text.memory = {kPlenty, kPlenty};
  const Instance instance = text.build();
  const Engine engine(instance, {});
  const Neighbourhood around(instance);
  Context context;
  context.budget.max_states = 1'000;
  Walk walk(engine, around, {DeviceId(0)}, context);
  Rng rng(3);
  proposed_accept(walk, rng, usual_proposals());
  EXPECT_EQ(context.states, 3U);  // the start, its path, the change
  EXPECT_EQ(walk.best()->time, nanoseconds(10));
}

}  // namespace
}  // namespace espalier::placement
