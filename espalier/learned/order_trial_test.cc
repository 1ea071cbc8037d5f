#include "espalier/learned/order_trial.h"

#include <gtest/gtest.h>

#include <atomic>

#include "espalier/learned/towers_for_tests.h"
#include "espalier/planners/placement/ranks.h"

namespace espalier::placement {
namespace {

struct Call {
  bool by_rank;
  double part;
  std::uint64_t left;
};

// A learner that comes to these steps by upward rank and in the order of the graph; none: nothing fits.
class FakeLearner {
 public:
  FakeLearner(std::optional<Duration> by_rank, std::optional<Duration> by_graph)
      : by_rank_(by_rank), by_graph_(by_graph) {}

  Placed operator()(const TaskOptions& options, double part, Context& context) {
    EXPECT_FALSE(options.tries_orders);
    const bool by_rank = !options.priority.empty();
    EXPECT_EQ(options.priority,
              by_rank ? upward_priorities(two_towers().instance) : std::vector<std::uint32_t>());
    calls.push_back({by_rank, part, context.left()});
    context.take_states(10);
    const std::optional<Duration> step = by_rank ? by_rank_ : by_graph_;
    if (!step) return {.why = "nothing fits"};
    return {.assignment = Assignment(two_towers().instance.units(), DeviceId(0)), .estimate = step};
  }

  std::vector<Call> calls;

 private:
  std::optional<Duration> by_rank_, by_graph_;
};

Placed asked(FakeLearner& learner, bool tries_orders, Context& context) {
  return by_better_order(two_towers().instance, {.tries_orders = tries_orders}, context, std::ref(learner));
}

TEST(OrderTrial, AnEighthEachThenTheRestByTheBetterOne) {
  for (const bool rank_is_better : {false, true}) {
    FakeLearner learner(milliseconds(rank_is_better ? 1 : 3), milliseconds(2));
    Context context;
    context.budget.max_states = 800;
    const Placed placed = asked(learner, true, context);
    EXPECT_EQ(placed.estimate, milliseconds(rank_is_better ? 1 : 2));
    ASSERT_EQ(learner.calls.size(), 3U);
    EXPECT_TRUE(learner.calls[0].by_rank);
    EXPECT_FALSE(learner.calls[1].by_rank);
    EXPECT_EQ(learner.calls[2].by_rank, rank_is_better);
    EXPECT_EQ(learner.calls[0].part, 0.125);
    EXPECT_EQ(learner.calls[1].part, 0.125);
    EXPECT_EQ(learner.calls[2].part, 0.75);
    EXPECT_EQ(learner.calls[0].left, 100U);
    EXPECT_EQ(learner.calls[1].left, 100U);
    EXPECT_EQ(learner.calls[2].left, 780U);  // what trials left, too
    EXPECT_EQ(context.states, 30U);
    EXPECT_EQ(placed.stats.states, 30U);
  }
}

TEST(OrderTrial, AnOrderInWhichNothingFitsIsTheWorse) {
  FakeLearner learner(std::nullopt, milliseconds(2)), none(std::nullopt, std::nullopt);
  Context context, other;
  EXPECT_EQ(asked(learner, true, context).estimate, milliseconds(2));
  EXPECT_FALSE(learner.calls.back().by_rank);
  EXPECT_EQ(asked(none, true, other).why, "nothing fits");
}

TEST(OrderTrial, AnInterruptedOneHasTheFirstAnswer) {
  FakeLearner learner(milliseconds(1), milliseconds(2));
  const std::atomic<bool> cancelled = true;
  Context context;
  context.cancelled = &cancelled;
  EXPECT_EQ(asked(learner, true, context).estimate, milliseconds(1));
  EXPECT_EQ(learner.calls.size(), 1U);
}

TEST(OrderTrial, IsLeftOutWhereNobodyWantsIt) {
  FakeLearner learner(milliseconds(1), milliseconds(2));
  Context context;
  EXPECT_EQ(asked(learner, false, context).estimate, milliseconds(2));
  ASSERT_EQ(learner.calls.size(), 1U);
  EXPECT_EQ(learner.calls[0].part, 1);
}

TEST(OrderTrial, TheBetterOrderOfPlacementsIsThatOfTheShortestStep) {
  const Instance& instance = two_towers().instance;
  Assignment split(instance.units());
  for (std::size_t u = 0; u < split.size(); ++u) split[u] = DeviceId(u % 2);
  const std::vector<Assignment> placements{split, Assignment(instance.units(), DeviceId(0))};
  Context context;
  const std::vector<std::uint32_t> priority = better_order(instance, {}, placements, context);
  EXPECT_EQ(context.states, 4U);
  Duration by_it = Duration::max(), by_any = Duration::max();
  Scratch scratch;
  for (const DeviceOrders& orders : usual_orders(instance)) {
    const Engine engine(instance, {}, orders);
    for (const Assignment& each : placements) {
      const Duration step = engine.evaluate(each, scratch).time;
      by_any = std::min(by_any, step);
      if (orders.priority == priority) by_it = std::min(by_it, step);
    }
  }
  EXPECT_EQ(by_it, by_any);
}

}  // namespace
}  // namespace espalier::placement
