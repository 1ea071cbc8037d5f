#include "espalier/planners/placement/exact.h"

#include <gmock/gmock.h>

#include "espalier/planners/placement/search_cases_for_tests.h"

namespace espalier::placement {
namespace {

TEST(ExactPlacement, EqualsTheBestOfAllAssignments) {
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    Rng rng(seed);
    const CaseOptions options{
        .tasks = 2 + rng.below(6),
        .devices = 2 + rng.below(2),
        .kinds = 1 + rng.below(2),
        .memory = static_cast<std::int64_t>(rng.below(3) == 0 ? 12 + rng.below(40) : 1'000)};
    const Instance instance = random_case(options, rng);
    const Engine engine(instance, some_rules(seed));
    Context context;
    const ExactPlacement found = exact_placement(engine, {}, context);
    ASSERT_TRUE(found.complete);
    EXPECT_EQ(found.placed.estimate, least_of_all(engine)) << seed;
    if (!found.placed.assignment) {
      EXPECT_NE(found.placed.why, "");
      continue;
    }
    const Timeline line = timeline(engine, *found.placed.assignment);
    EXPECT_EQ(line.evaluated.time, found.placed.estimate);
    EXPECT_TRUE(line.evaluated.fits);
    EXPECT_THAT(check_timeline(instance, engine.rules(), *found.placed.assignment, line),
                ::testing::IsEmpty());
  }
}

TEST(ExactPlacement, EqualDevicesAreTakenInOneOrder) {
  Rng rng(3);
  const Instance instance = random_case({.tasks = 7, .devices = 3, .together = 1'000'000}, rng);
  Rules rules;
  EXPECT_THAT(interchangeable(instance, rules),
              ::testing::ElementsAre(DeviceId(0), DeviceId(1), DeviceId(2)));
  Instance free = instance;
  free.allowed = {};
  for (std::size_t u = 0; u < free.units(); ++u) {
    for (std::size_t d = 0; d < 3; ++d) free.allowed.items.emplace_back(d);
    free.allowed.close();
  }
  rules.sends = Rules::Sends::kUnlimited;
  for (Route& way : free.ways) way.links.clear();
  EXPECT_THAT(interchangeable(free, rules), ::testing::ElementsAre(DeviceId(0), DeviceId(0), DeviceId(0)));
}

TEST(ExactPlacement, ABudgetThatEndsLeavesTheBestUntilThen) {
  Rng rng(5);
  const Instance instance = random_case({.tasks = 12, .devices = 3}, rng);
  const Engine engine(instance, {});
  Context context;
  context.budget.max_states = 20;
  const ExactPlacement found = exact_placement(engine, {}, context);
  EXPECT_FALSE(found.complete);
  EXPECT_LE(context.states, 20U);
}

}  // namespace
}  // namespace espalier::placement
