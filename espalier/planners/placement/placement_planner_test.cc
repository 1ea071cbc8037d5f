#include "espalier/planners/placement/placement_planner.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "espalier/plan/fragments.h"
#include "espalier/planners/placement/ranks.h"
#include "espalier/planners/toy_for_tests.h"
#include "espalier/sim/placement_judge.h"
#include "testing/random_graphs.h"
#include "testing/random_placements.h"

namespace espalier::placement {
namespace {

using ::testing::IsEmpty;

Instance instance_of(const Toy& toy) {
  return make_instance(toy.graph, toy.cluster, toy.costs, toy.training, {.micro_batch = toy.training.batch});
}

DeviceOrders by_rank_of(const Instance& instance) {
  return {upward_priorities(instance), {}};
}

Timeline line_of(const Instance& instance, const Assignment& assignment) {
  return timeline(Engine(instance, {}, by_rank_of(instance)), assignment);
}

Duration judged(const Toy& toy, const Placement& placement) {
  return judge_placement(toy.graph, toy.cluster, toy.costs, toy.training, placement).iteration;
}

// Two layers of so many time steps, 1 ms forward and 2 ms backward each; every layer has one weight.
std::string two_layers(std::size_t steps) {
  std::string text = "x = input() : f32[b]\nv = parameter(v) : f32[1]\nw = parameter(w) : f32[1]\n";
  for (std::size_t t = 1; t <= steps; ++t) {
    const std::string now = std::to_string(t), before = std::to_string(t - 1);
    text += "a" + now + " = f(" + (t == 1 ? "x" : "a" + before) + ", v) : f32[b] @class=c1\n";
    text += "b" + now + " = f(a" + now + (t == 1 ? "" : ", b" + before) + ", w) : f32[b] @class=c1\n";
  }
  return text + "loss = f(b" + std::to_string(steps) + ", w) : f32[] @class=c1\n";
}

// The first layer on the first device, the rest on the second.
Placement by_layer(const Toy& toy) {
  Placement placement;
  for (const Operator& op : toy.graph.operators()) placement.device.emplace_back(op.name[0] == 'a' ? 0 : 1);
  return placement;
}

// The fastest of what with_levels makes where devices run by one order.
std::optional<Placement> best_cut(const Toy& toy, const Placement& placement, const DeviceOrders& orders) {
  std::optional<Placement> best;
  for (Placement& cut : with_levels(toy.graph, instance_of(toy), placement, {{orders}})) {
    if (!best || judged(toy, cut) < judged(toy, *best)) best = std::move(cut);
  }
  return best;
}

// Operators that read two earlier ones each, with a weight each, and a loss that reads all that nobody reads.
std::string random_network(std::size_t operators, Rng& rng) {
  std::string text = "x = input() : f32[b]\n";
  std::vector<std::string> names{"x"}, unread;
  for (std::size_t i = 0; i < operators; ++i) {
    const std::string name = "h" + std::to_string(i);
    text += name + "w = parameter(" + name + "w) : f32[1]\n" + name + " = f(";
    for (int reads = 0; reads < 2; ++reads) {
      const std::string read = names[rng.below(names.size())];
      std::erase(unread, read);
      text += read + ", ";
    }
    text += name + "w) : f32[b] @class=c" + std::to_string(1 + rng.below(5)) + "\n";
    names.push_back(name);
    unread.push_back(name);
  }
  text += "loss = f(";
  for (const std::string& name : unread) text += (name == unread.front() ? "" : ", ") + name;
  return text + ") : f32[] @class=c1\n";
}

TEST(WithLevels, ALayerWaitsForOneTimeStepOfTheOneBeforeIt) {
  const Toy toy(two_layers(8), kThreeDevices, 1);
  const Instance instance = instance_of(toy);
  const Placement plain = by_layer(toy);
  // Forward 8 + 0.5 + 8 + 1 (the loss), backward twice that, without the second latency of 0.5.
  EXPECT_EQ(judged(toy, plain), microseconds(17'500 + 34'500));
  const std::optional<Placement> cut = best_cut(toy, plain, by_rank_of(instance));
  ASSERT_TRUE(cut.has_value());
  EXPECT_THAT(check_placement(toy.graph, toy.cluster, *cut), IsEmpty());
  const PipelinePlan fragments = fragments_of(toy.graph, *cut, BatchSize(1));
  EXPECT_THAT(check_fragments(toy.graph, toy.cluster, *cut, fragments), IsEmpty());
  EXPECT_EQ(fragments.stages.size(), 16U);  // the last two operators are one
  // Forward 1 + 0.5 + 8 + 1, backward 2 + 16 + 0.5 + 2.
  EXPECT_EQ(judged(toy, *cut), microseconds(10'500 + 20'500));
  EXPECT_EQ(judged(toy, *cut), line_of(instance, *assignment_of(instance, toy.graph, plain)).evaluated.time);
}

TEST(WithLevels, SumsOfAWeightOnTwoDevicesCountInBothMeasures) {
  // Every other step of the first layer stands on the third device: v is summed there and back.
  const Toy toy(two_layers(4), kThreeDevices, 1);
  const Instance instance = instance_of(toy);
  Placement placement = by_layer(toy);
  placement.device[toy.graph.find_operator("a2")->index()] = DeviceId(2);
  const std::optional<Placement> cut = best_cut(toy, placement, by_rank_of(instance));
  ASSERT_TRUE(cut.has_value());
  const Timeline line = line_of(instance, *assignment_of(instance, toy.graph, placement));
  EXPECT_EQ(line.ending, milliseconds(1));
  EXPECT_EQ(judged(toy, *cut), line.evaluated.time);
}

TEST(WithLevels, FragmentsOfRandomPlacementsKeepUpWithTheirOperators) {
  Rng rng(8);
  std::size_t slower_without = 0, kept_up = 0;
  Duration of_fragments, of_operators;
  constexpr std::size_t kRounds = 200;
  for (std::size_t round = 0; round < kRounds; ++round) {
    const std::string text = random_network(3 + rng.below(12), rng);
    const Toy toy(text, kThreeDevices, 1);
    const Instance instance = instance_of(toy);
    const Placement plain = espalier::testing::random_placement(rng, toy.graph, toy.cluster);
    for (const Placement& cut : with_levels(toy.graph, instance, plain, usual_orders(instance))) {
      ASSERT_THAT(check_placement(toy.graph, toy.cluster, cut), IsEmpty()) << text;
      const PipelinePlan fragments = fragments_of(toy.graph, cut, BatchSize(1));
      ASSERT_THAT(check_fragments(toy.graph, toy.cluster, cut, fragments), IsEmpty()) << text;
    }
    const std::optional<Placement> cut = best_cut(toy, plain, by_rank_of(instance));
    ASSERT_TRUE(cut.has_value()) << text;
    const Duration operators = line_of(instance, *assignment_of(instance, toy.graph, plain)).evaluated.time;
    kept_up += judged(toy, *cut) <= operators ? 1 : 0;
    of_fragments += judged(toy, *cut);
    of_operators += operators;
    slower_without += judged(toy, plain) > judged(toy, *cut) ? 1 : 0;
  }
  EXPECT_EQ(kept_up, kRounds);
  EXPECT_LE(of_fragments, of_operators);
  EXPECT_GT(slower_without, kRounds / 5);
}

TEST(WithLevels, GraphsThatMutateGetLegalLevelsOrNone) {
  Rng rng(9);
  std::size_t cut_ones = 0;
  for (int round = 0; round < 150; ++round) {
    const Graph graph = espalier::testing::random_graph(
        rng, {.operators = 1 + rng.below(20), .mutations = true, .max_batch = BatchSize(16)});
    const Cluster cluster = espalier::testing::random_cluster(rng);
    Training training;
    training.batch = BatchSize(8);
    training.micro_batches = {training.batch};
    const CostTable costs =
        complete_costs(graph, cluster, CostTable(CostTableParts{}), training.micro_batches);
    const Instance instance = make_instance(graph, cluster, costs, training, {.micro_batch = training.batch});
    const Placement plain = espalier::testing::random_placement(rng, graph, cluster);
    const std::vector<Placement> cuts = with_levels(graph, instance, plain, usual_orders(instance));
    for (const Placement& cut : cuts) {
      ASSERT_THAT(check_placement(graph, cluster, cut), IsEmpty());
      ASSERT_THAT(check_fragments(graph, cluster, cut, fragments_of(graph, cut, BatchSize(8))), IsEmpty());
      ASSERT_TRUE(judge_placement(graph, cluster, costs, training, cut).can_run());
    }
    if (!cuts.empty()) ++cut_ones;
  }
  EXPECT_GT(cut_ones, 100U);
}

TEST(PlanByPlacer, TheFasterOfBothFragmentsCounts) {
  const Toy toy(two_layers(6), kThreeDevices, 1);
  const Placer placer{
      "by-layer", "", "", [&](const PlacerInput& input, Context&) {
        return Placed{.assignment = assignment_of(input.instance, input.graph, by_layer(toy))};
      }};
  Context context;
  const Outcome outcome = plan_by_placer(toy.problem(), placer, {}, context);
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  const auto& placement = std::get<Placement>(*outcome.plan);
  EXPECT_FALSE(placement.level.empty());
  EXPECT_LT(judged(toy, placement), judged(toy, by_layer(toy)));
}

// A placer that says what devices run by is taken at its word where that is fastest; so are the usual orders.
TEST(PlanByPlacer, TheFastestOfTheOrdersCounts) {
  Rng rng(10);
  std::vector<int> fastest(4,
                           0);  // as it is, by the placer's own order, by upward rank, by the graph's order
  for (int round = 0; round < 200; ++round) {
    const Toy toy(random_network(12, rng), kThreeDevices, 1);
    const Instance instance = instance_of(toy);
    const Placement plain = espalier::testing::random_placement(rng, toy.graph, toy.cluster);
    DeviceOrders own;
    for (std::size_t t = 0; t < instance.tasks(); ++t)
      own.priority.push_back(static_cast<std::uint32_t>(rng.below(1'000)));
    const Placer placer{"drawn", "", "", [&](const PlacerInput& input, Context&) {
                          return Placed{.assignment = assignment_of(input.instance, input.graph, plain),
                                        .orders = own};
                        }};
    Context context;
    const Outcome outcome = plan_by_placer(toy.problem(), placer, {}, context);
    ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
    std::vector<Duration> steps{judged(toy, plain)};
    for (const DeviceOrders& orders : {own, by_rank_of(instance), DeviceOrders()})
      steps.push_back(judged(toy, best_cut(toy, plain, orders).value()));
    const Duration least = *std::min_element(steps.begin(), steps.end());
    EXPECT_EQ(judged(toy, std::get<Placement>(*outcome.plan)), least);
    for (std::size_t i = 0; i < steps.size(); ++i)
      if (std::count(steps.begin(), steps.end(), least) == 1 && steps[i] == least) ++fastest[i];
  }
  EXPECT_THAT(fastest, ::testing::Each(::testing::Gt(0)));
}

// One micro-batch passes a chain on one device soonest; eight of them pass three devices sooner.
TEST(PlanByPlacer, StartsOfASearchCountWhereThereAreSeveralMicroBatches) {
  std::string chain = "x = input() : f32[b]\nv0 = parameter(v0) : f32[1]\na0 = f(x, v0) : f32[b] @class=c2\n";
  for (int i = 1; i < 6; ++i) {
    const std::string now = std::to_string(i), before = std::to_string(i - 1);
    chain += "v" + now + " = parameter(v" + now + ") : f32[1]\n";
    chain += "a" + now + " = f(a" + before + ", v" + now + ") : f32[b] @class=c2\n";
  }
  const Toy toy(chain + "loss = f(a5) : f32[] @class=c0\n", kThreeDevices, 8);
  const auto planned = [&](const char* placer) {
    Context context;
    const Outcome outcome = plan_by_placer(toy.problem(), find_placer(placer), {}, context);
    EXPECT_EQ(outcome.status, Status::kFeasible) << outcome.why;
    return judge_placement(toy.graph, toy.cluster, toy.costs, toy.training,
                           std::get<Placement>(*outcome.plan), {.micro_batch = BatchSize(1)})
        .iteration;
  };
  EXPECT_EQ(planned("one-device"), milliseconds(8 * 6 * 6));
  EXPECT_LT(planned("expert"), milliseconds(8 * 6 * 6) / 2);
  EXPECT_LE(planned("local-search"), planned("expert"));
}

}  // namespace
}  // namespace espalier::placement
