#include "espalier/learned/cross_entropy.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "espalier/learned/towers_for_tests.h"
#include "espalier/learned/workload.h"
#include "espalier/planners/placement/memory_ledger.h"

namespace espalier::placement {
namespace {

CrossEntropyOptions twelve_clusters(std::uint64_t iterations) {
  CrossEntropyOptions options;
  options.task.clusters.clusters = 12;
  options.iterations = iterations;
  return options;
}

TEST(CrossEntropy, FindsTheOptimumOfASmallCase) {
  const Workload& workload = two_towers();
  CrossEntropyOptions options = twelve_clusters(20);
  options.task.tries_orders = false;
  std::vector<CrossEntropyPoint> curve;
  options.told = [&](const CrossEntropyPoint& point) { curve.push_back(point); };
  Context context;
  const Placed placed = cross_entropy({workload.graph, workload.instance}, options, context);
  ASSERT_TRUE(placed.assignment.has_value()) << placed.why;

  const PlacementTask task(workload.graph, workload.instance, options.task);
  Scratch scratch;
  Duration least = Duration::max();
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << task.clusters().count; ++bits) {
    NodeDevices devices;
    for (std::size_t n = 0; n < task.clusters().count; ++n) devices.emplace_back(bits >> n & 1);
    least = std::min(least,
                     task.engine().evaluate(assignment_of_clusters(task.clusters(), devices), scratch).time);
  }
  EXPECT_EQ(*placed.estimate, least);
  ASSERT_EQ(curve.size(), 20U);
  EXPECT_LT(curve.back().elite, curve.front().elite);
  EXPECT_GT(curve.back().certainty, 0.9);
  EXPECT_EQ(context.states, 20U * options.samples);
}

TEST(CrossEntropy, ThreadsDoNotChangeTheAnswer) {
  const auto answer = [](ThreadPool* pool) {
    Context context;
    context.pool = pool;
    return cross_entropy({two_towers().graph, two_towers().instance}, twelve_clusters(3), context).assignment;
  };
  ThreadPool three(3);
  EXPECT_EQ(answer(nullptr), answer(&three));
}

TEST(CrossEntropy, BudgetsAreKeptToTheLastState) {
  for (const std::uint64_t most : {0U, 1U, 100U}) {
    Context context;
    context.budget.max_states = most;
    const Placed placed =
        cross_entropy({two_towers().graph, two_towers().instance}, twelve_clusters(50), context);
    EXPECT_EQ(context.states, most);
    EXPECT_EQ(placed.assignment.has_value(), most > 0);
    EXPECT_EQ(placed.why.empty(), most > 0);
  }
}

TEST(CrossEntropy, SaysWhatLacksWhereNothingFits) {
  Instance instance = two_towers().instance;
  std::fill(instance.memory.begin(), instance.memory.end(), Bytes(1000));
  for (const auto memory : {Rules::Memory::kAllHeld, Rules::Memory::kLive}) {
    CrossEntropyOptions options = twelve_clusters(2);
    options.task.rules.memory = memory;
    Context context;
    const Placed placed = cross_entropy({two_towers().graph, instance}, options, context);
    EXPECT_FALSE(placed.assignment.has_value());
    EXPECT_FALSE(placed.why.empty());
    EXPECT_EQ(placed.lacks.empty(), memory == Rules::Memory::kLive);
  }
}

TEST(CrossEntropy, UnitsStandWhereTheyMayAndFit) {
  Instance instance = two_towers().instance;
  instance.allowed = {};
  for (std::size_t u = 0; u < instance.units(); ++u) {
    for (std::size_t d = u % 3 == 0 ? 1 : 0; d < 2; ++d) instance.allowed.items.emplace_back(d);
    instance.allowed.close();
  }
  Context context;
  const Placed placed = cross_entropy({two_towers().graph, instance}, twelve_clusters(5), context);
  ASSERT_TRUE(placed.assignment.has_value());
  for (std::size_t u = 0; u < instance.units(); u += 3) EXPECT_EQ((*placed.assignment)[u], DeviceId(1));
  EXPECT_TRUE(check_memory(instance, *placed.assignment).empty());
}

}  // namespace
}  // namespace espalier::placement
