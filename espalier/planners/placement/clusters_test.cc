#include "espalier/planners/placement/clusters.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <vector>

#include "espalier/planners/placement/default_search.h"
#include "espalier/planners/placement/search_cases_for_tests.h"

namespace espalier::placement {
namespace {

using ::testing::IsEmpty;

Instance some_case(std::uint64_t seed, std::size_t devices = 3) {
  Rng rng(seed);
  return random_case({.tasks = 90, .devices = devices, .kinds = 1 + seed % 2, .memory = 400}, rng);
}

TEST(Clusters, CoverAllUnitsAndAreNumberedByTheirFirst) {
  const Instance instance = some_case(1);
  for (const std::size_t aim : {1UL, 7UL, 40UL, 1000UL}) {
    const Clusters clusters =
        cluster_units(instance, {.clusters = aim, .most_time = 1e9, .most_memory = 1e9});
    ASSERT_EQ(clusters.of_unit.size(), instance.units());
    std::uint32_t next = 0;
    for (const std::uint32_t cluster : clusters.of_unit) {
      ASSERT_LE(cluster, next);
      next += cluster == next ? 1 : 0;
    }
    EXPECT_EQ(next, clusters.count);
    EXPECT_GE(clusters.count, std::min(aim, instance.units()));
  }
}

TEST(Clusters, NoneKeepsEveryUnitAlone) {
  const Instance instance = some_case(2);
  EXPECT_EQ(cluster_units(instance, {.clusters = 0}).count, instance.units());
}

TEST(Clusters, HoldTheirCaps) {
  const Instance instance = some_case(4);
  const ClusterOptions options{.clusters = 20, .most_time = 2, .most_bound = 0.3};
  const Clusters clusters = cluster_units(instance, options);
  std::vector<double> time(clusters.count), members(clusters.count);
  double all = 0;
  for (std::size_t u = 0; u < instance.units(); ++u) {
    for (const TaskId task : instance.tasks_of[u]) {
      time[clusters.of_unit[u]] += static_cast<double>(instance.time_on(task, DeviceId(0)).count());
      all += static_cast<double>(instance.time_on(task, DeviceId(0)).count());
    }
    members[clusters.of_unit[u]] += 1;
  }
  const double most = std::max(all * 2 / 20, all * 0.3 / 3);
  for (std::size_t c = 0; c < clusters.count; ++c) {
    if (members[c] > 1) {
      EXPECT_LE(time[c], most * (1 + 1e-9)) << c;
    }
  }
}

TEST(Clusters, PlacementsOfClustersAndOfUnitsAreOne) {
  const Instance instance = some_case(5);
  const Clusters clusters = cluster_units(instance, {.clusters = 12});
  std::vector<DeviceId> device;
  for (std::size_t c = 0; c < clusters.count; ++c) device.emplace_back(c % 2);
  EXPECT_EQ(devices_of_clusters(instance, clusters, assignment_of_clusters(clusters, device)), device);
}

TEST(JoinedUnits, TakeTheSameStepAndTheSameMemory) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Instance instance = some_case(seed);
    const Clusters clusters = cluster_units(instance, {.clusters = 5 + seed, .most_time = 10});
    const Instance joined = joined_units(instance, clusters);
    ASSERT_THAT(check_instance(joined), IsEmpty());
    ASSERT_EQ(joined.units(), clusters.count);
    Rng rng(seed);
    std::vector<DeviceId> device;
    for (std::size_t c = 0; c < clusters.count; ++c) device.emplace_back(rng.below(instance.devices()));
    const Rules rules = some_rules(seed);
    Scratch of_joined, of_units;
    const Evaluated a = Engine(joined, rules).evaluate(device, of_joined);
    const Evaluated b = Engine(instance, rules).evaluate(assignment_of_clusters(clusters, device), of_units);
    EXPECT_EQ(a.time, b.time) << seed;
    EXPECT_EQ(a.fits, b.fits) << seed;
    EXPECT_EQ(a.lack, b.lack) << seed;
  }
}

TEST(SearchLevels, NeverBeatTheBestAndSayWhatTheEngineSays) {
  int hits = 0, cases = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Rng rng(seed);
    const Instance instance =
        random_case({.tasks = 5 + rng.below(3), .devices = 2, .memory = rng.below(2) == 0 ? 25 : 1'000}, rng);
    const Rules rules = some_rules(seed);
    const Engine engine(instance, rules);
    Context context;
    context.budget.max_states = 500;
    PlacementSearchOptions options;
    for (const std::size_t clusters : {1U, 3U})
      options.levels.push_back(
          cluster_units(instance, {.clusters = clusters, .most_time = 9, .most_memory = 9}));
    const Placed placed = placement_search(instance, rules, options, context);
    EXPECT_LE(context.states, 500U);
    if (!placed.assignment) continue;
    Scratch scratch;
    const Evaluated seen = engine.evaluate(*placed.assignment, scratch);
    EXPECT_TRUE(seen.fits);
    EXPECT_EQ(seen.time, placed.estimate);
    const Duration best = least_of_all(engine).value();
    EXPECT_GE(seen.time, best) << seed;
    ++cases;
    hits += seen.time == best ? 1 : 0;
  }
  EXPECT_GT(cases, 30);
  EXPECT_GT(10 * hits, 8 * cases) << hits << " of " << cases;
}

// With few looks a unit all chains move clusters, with more every other one.
TEST(SearchLevels, SameBytesForAnyNumberOfThreads) {
  const Instance instance = some_case(8);
  const std::vector<Clusters> levels = {cluster_units(instance, {.clusters = 8}),
                                        cluster_units(instance, {.clusters = 24})};
  const auto found = [&](std::size_t threads, std::uint64_t budget) {
    ThreadPool pool(threads);
    Context context;
    context.budget.max_states = budget;
    context.pool = &pool;
    PlacementSearchOptions options;
    options.levels = levels;
    return placement_search(instance, {}, options, context);
  };
  const Engine engine(instance, {});
  Scratch scratch;
  for (const std::uint64_t budget : {5 * instance.units(), 20 * instance.units()}) {
    const Placed one = found(1, budget);
    EXPECT_EQ(engine.evaluate(one.assignment.value(), scratch).time, one.estimate);
    for (const std::size_t threads : {2U, 5U}) EXPECT_EQ(found(threads, budget).assignment, one.assignment);
  }
}

TEST(SearchLevels, AreTheCoarsestFirst) {
  const auto counts = [](const Instance& instance) {
    std::vector<std::size_t> sizes;
    for (const Clusters& level : search_levels(instance, std::vector<std::uint32_t>(instance.units())))
      sizes.push_back(level.count);
    return sizes;
  };
  Rng rng(1);
  EXPECT_THAT(counts(random_case({.tasks = 40}, rng)), IsEmpty());
  for (const std::size_t tasks : {70U, 130U, 250U, 900U}) {
    const Instance instance = random_case({.tasks = tasks}, rng);
    const std::vector<std::size_t> sizes = counts(instance);
    ASSERT_FALSE(sizes.empty()) << tasks;
    EXPECT_TRUE(std::is_sorted(sizes.begin(), sizes.end()));
    EXPECT_GE(sizes.front(), std::min<std::size_t>(48, instance.units() / 2));
  }
}

}  // namespace
}  // namespace espalier::placement
