#include "espalier/planners/placement/ordered.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>

#include "espalier/planners/placement/instance_for_tests.h"
#include "testing/random_graphs.h"

namespace espalier::placement {
namespace {

// An instance and a graph of the same shape, whose operators are the tasks.
struct OrderedCase {
  Graph graph;
  Instance instance;
};

OrderedCase layered_case(std::uint64_t seed, std::size_t tasks, std::size_t width, std::size_t devices) {
  Rng rng(seed);
  Instance instance =
      layered_instance(rng, {.tasks = tasks, .width = width, .devices = devices, .slack_percent = 200});
  GraphParts parts;
  parts.name = "layered";
  parts.tensors.push_back({.name = "x", .role = TensorRole::kInput, .storage = StorageId(0)});
  for (std::size_t t = 0; t < tasks; ++t) {
    Operator op;
    op.name = "t" + std::to_string(t);
    op.target = op.op_class = "task";
    op.inputs.emplace_back(0);
    for (const ValueId value : instance.reads[t])
      op.inputs.emplace_back(instance.producer[value.index()].index() + 1);
    op.outputs.emplace_back(t + 1);
    parts.tensors.push_back({.name = op.name, .storage = StorageId(t + 1), .producer = OperatorId(t)});
    parts.operators.push_back(std::move(op));
  }
  parts.outputs.emplace_back(tasks);
  return {Graph(std::move(parts)), std::move(instance)};
}

Duration exhausted_optimum(const Engine& engine) {
  const Instance& instance = engine.instance();
  Assignment at(instance.units(), DeviceId(0));
  Scratch scratch;
  Duration best = Duration::max();
  for (;;) {
    const Evaluated seen = engine.evaluate(at, scratch);
    if (seen.fits) best = std::min(best, seen.time);
    std::size_t u = 0;
    while (u < at.size() && at[u].index() + 1 == instance.devices()) at[u++] = DeviceId(0);
    if (u == at.size()) return best;
    at[u] = DeviceId(at[u].index() + 1);
  }
}

TEST(Ordered, EveryPlacerInEveryOrderPlacesAndNeverBeatsTheOptimum) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const OrderedCase small = layered_case(seed, 8, 3, 2);
    for (const Rules& rules : {Rules{}, placeto_rules()}) {
      const Engine engine(small.instance, rules);
      const Duration least = exhausted_optimum(engine);
      for (const OrderedPlacer placer : ordered_placers()) {
        for (const TraversalOrder order : traversal_orders()) {
          Context context;
          const Placed placed = place_in_order(small.graph, engine, placer, {order, seed, 200}, context);
          ASSERT_TRUE(placed.assignment) << to_text(placer) << ' ' << to_text(order);
          Scratch scratch;
          const Evaluated seen = engine.evaluate(*placed.assignment, scratch);
          EXPECT_TRUE(seen.fits);
          EXPECT_EQ(seen.time, *placed.estimate) << to_text(placer) << ' ' << to_text(order);
          EXPECT_GE(seen.time, least);
          EXPECT_LE(context.states, 200U) << to_text(placer) << ' ' << to_text(order);
        }
      }
    }
  }
}

TEST(Ordered, WalksReachTheOptimumOfASmallGraph) {
  const OrderedCase small = layered_case(5, 6, 3, 2);
  const Engine engine(small.instance, {});
  const Duration least = exhausted_optimum(engine);
  for (const OrderedPlacer placer :
       {OrderedPlacer::kUniformWalk, OrderedPlacer::kAccept, OrderedPlacer::kDescent}) {
    Context context;
    const Placed placed = place_in_order(small.graph, engine, placer, {.seed = 1, .looks = 3'000}, context);
    EXPECT_EQ(*placed.estimate, least) << to_text(placer);
  }
}

TEST(Ordered, MoreLooksNeverLengthenAWalksStep) {
  const OrderedCase wide = layered_case(2, 60, 6, 3);
  const Engine engine(wide.instance, {});
  for (const OrderedPlacer placer : ordered_placers()) {
    Duration before = Duration::max();
    for (const std::uint64_t looks : {60U, 240U, 960U}) {
      Context context;
      const Placed placed =
          place_in_order(wide.graph, engine, placer, {TraversalOrder::kRandomPerEpisode, 3, looks}, context);
      EXPECT_LE(*placed.estimate, before) << to_text(placer);
      EXPECT_LE(context.states, looks);
      before = *placed.estimate;
    }
  }
}

TEST(Ordered, ListPassesInTurnAreAsGoodAsTheBestOfTheirOrders) {
  for (std::uint64_t seed = 1; seed < 6; ++seed) {
    const OrderedCase wide = layered_case(seed, 60, 6, 3);
    const Engine engine(wide.instance, {});
    const auto step = [&](TraversalOrder order, std::uint64_t passes) {
      Context context;
      const std::uint64_t a_pass = wide.instance.units() * wide.instance.devices() + 1;
      return *place_in_order(wide.graph, engine, OrderedPlacer::kList, {order, 3, passes * a_pass}, context)
                  .estimate;
    };
    Duration best = Duration::max();
    for (const TraversalOrder order :
         {TraversalOrder::kTopoGenerations, TraversalOrder::kAlpha, TraversalOrder::kTopoLifo})
      best = std::min(best, step(order, 3));
    EXPECT_EQ(step(TraversalOrder::kInTurn, 3), best);
    EXPECT_EQ(step(TraversalOrder::kInTurn, 1), step(TraversalOrder::kTopoGenerations, 1));
  }
}

TEST(Ordered, TheSameSeedGivesTheSamePlacementAndTheBudgetOfTheCallerCounts) {
  const OrderedCase wide = layered_case(4, 40, 5, 3);
  const Engine engine(wide.instance, {});
  for (const OrderedPlacer placer : ordered_placers()) {
    Context one, two, little{.budget = {.max_states = 50}};
    const OrderedOptions options{.order = TraversalOrder::kRandom, .seed = 9, .looks = 400};
    const Placed first = place_in_order(wide.graph, engine, placer, options, one);
    EXPECT_EQ(first.assignment, place_in_order(wide.graph, engine, placer, options, two).assignment);
    place_in_order(wide.graph, engine, placer, options, little);
    EXPECT_LE(little.states, 50U) << to_text(placer);
  }
}

TEST(Ordered, NamesReadBack) {
  for (const OrderedPlacer placer : ordered_placers())
    EXPECT_EQ(parse_ordered_placer(to_text(placer)), placer);
  EXPECT_EQ(parse_ordered_placer("walk"), std::nullopt);
}

}  // namespace
}  // namespace espalier::placement
