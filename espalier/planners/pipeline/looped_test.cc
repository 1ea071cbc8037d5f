#include "espalier/planners/pipeline/looped.h"

#include <gtest/gtest.h>

#include "espalier/planners/pipeline/even.h"
#include "espalier/planners/toy_for_tests.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// A chain of twelve operators of 1 ms (and 2 ms backward) with weights, on three devices.
Toy chain_of_twelve(std::int64_t batch) {
  std::string text = "x = input() : f32[b]\n";
  std::string before = "x";
  for (int i = 0; i < 12; ++i) {
    const std::string n = std::to_string(i);
    text += "w" + n + " = parameter(w" + n + ") : f32[1]\n";
    text += "y" + n + " = layer(" + before + ", w" + n + ") : f32[" + (i < 11 ? "b" : "") + "] @class=c1\n";
    before = "y" + n;
  }
  return Toy(text + "return y11\n", kThreeDevices, batch);
}

TEST(Looped, SeveralStagesADeviceBeatOne) {
  const Toy toy = chain_of_twelve(6);
  Context context, again;
  const Outcome found = looped(toy.problem(), {}, context);
  const Outcome one = even(toy.problem(), {}, again);
  ASSERT_EQ(found.status, Status::kFeasible);
  EXPECT_LT(toy.simulated(found), toy.simulated(one));
}

TEST(Looped, MakesTheLayoutOfASchedule) {
  const Toy toy = chain_of_twelve(6);
  for (const char* name : {"interleaved,chunks=2", "interleaved,chunks=4", "interleaved", "interleaved,split",
                           "zbv", "v-half", "v-min", "dualpipev", "zb-h1", "zb-h2", "zb-greedy"}) {
    Context context;
    const NamedOrders orders = *parse_named_orders(name);
    const Outcome found = looped(toy.problem(), {.orders = orders}, context);
    ASSERT_EQ(found.status, Status::kFeasible) << name << found.why;
    const Duration time = toy.simulated(found);
    // The plan has that schedule, and its stages are those that it is made for.
    PipelinePlan plan = std::get<PipelinePlan>(*found.plan);
    const StagedModel model = stage_model(toy.graph, toy.cluster, toy.costs, toy.training, plan);
    EXPECT_EQ(*plan.orders.lists(), make_orders(orders, model, toy.cluster).lists) << name;
    // Twelve equal blocks: none of the stages is longer than another.
    for (const Stage& stage : plan.stages) {
      EXPECT_EQ(stage.operators.size(), plan.stages.back().operators.size()) << name;
    }
    EXPECT_GE(time, milliseconds(72)) << name;  // 6 micro-batches of 36 ms on three devices
  }
}

TEST(Looped, SaysWhyItHasNoPlan) {
  const Toy toy = chain_of_twelve(5);  // five micro-batches, DualPipeV needs six
  Context context;
  const Outcome found = looped(toy.problem(), {.orders = parse_named_orders("dualpipev")}, context);
  EXPECT_EQ(found.status, Status::kUnsupported);
  EXPECT_THAT(found.why, HasSubstr("dualpipev: 5 micro-batches; it needs two for each device, 6"));
}

}  // namespace
}  // namespace espalier
