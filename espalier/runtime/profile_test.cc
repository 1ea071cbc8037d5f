#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "espalier/cost/cost_table.h"
#include "espalier/runtime/loaded_model.h"
#include "espalier/runtime/pass_profiler.h"
#include "espalier/runtime/plans_for_tests.h"
#include "espalier/runtime/profile_estimate.h"
#include "espalier/runtime/runtime.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pointwise;

TEST(Profile, EveryOperatorGetsAMeasuredCell) {
  const std::string path = kFixtures + "gpt.pt2";
  const LoadedModel model(path);
  std::uint32_t steps = 0;
  ProfileOptions options;
  options.rounds = 3;
  options.micro_batches = {BatchSize(2), BatchSize(4)};
  options.on_progress = [&](const ProfileProgress&) { ++steps; };
  const CostTable table = profile_model(path, options);
  EXPECT_THAT(check_cost_table(table.parts()), IsEmpty());
  EXPECT_EQ(steps, 5U);  // the first look, three rounds, the end
  for (const Operator& op : model.graph().operators()) {
    const CostRow* row = table.find(op.op_class, "cpu");
    ASSERT_NE(row, nullptr) << op.name;
    ASSERT_EQ(row->points.size(), 2U);
    EXPECT_EQ(row->points[0].cost.origin, Origin::kMeasured);
    EXPECT_GT(row->points[0].cost.forward, Duration()) << op.name;
  }
  EXPECT_EQ(table.overhead("cpu").updates.size(), 3U);
  EXPECT_EQ(table.overhead("cpu").neighbour_per_mille, 0);  // there is none
  EXPECT_GT(table.overhead("cpu").scatter.spread_per_mille, 0);
  EXPECT_FALSE(table.parts().link.has_value());
}

// By operator: what each half of a backward runs, from the classes' derivative formulas.
TEST(Profile, EachHalfOfBackwardIsMeasured) {
  const LoadedModel model(kFixtures + "gpt.pt2");
  const Program program(model.exported, BatchSize(2), at::kCPU);
  Session session(model.exported, model.file.bytes(), {}, 0, at::kCPU);
  const auto data = synthetic_data(model.exported, 0);
  PassProfiler profiler(program, session, *data);
  const HalfTimes halves = profiler.stamped_halves();
  const auto runs = [&](const char* name) {
    const std::size_t op = model.graph().find_operator(name)->index();
    return std::pair(halves.input[op] > 0, halves.weight[op] > 0);
  };
  EXPECT_EQ(runs("linear_2"), std::pair(true, true));
  EXPECT_EQ(runs("layer_norm"), std::pair(true, true));
  EXPECT_EQ(runs("gelu"), std::pair(true, false));  // no parameter
  EXPECT_EQ(runs("add_1"), std::pair(true, false));
  EXPECT_EQ(runs("embedding"), std::pair(false, true));  // its indices have no gradient
}

TEST(Profile, ABackwardTimeIsPartedAsItsHalvesWere) {
  PassSamples samples(2);
  PassTimes plain{100, 300, {}, {}}, stamped{120, 330, {60, 60}, {110, 220}};
  samples.add({plain}, stamped, {{90, 0}, {30, 50}});
  // Backward: 300 over 110 and 220 is 100 and 200; the first has 30 of 120 in its weight half.
  EXPECT_THAT(operator_times(samples),
              Pointwise(::testing::DoubleNear(1e-9), std::vector<double>{50, 50, 75, 0, 25, 200}));
}

// What autograd keeps, read off PyTorch's own derivative formulas.
TEST(Profile, SavedTensorsAreThoseOfTheDerivativeFormulas) {
  const LoadedModel model(kFixtures + "gpt.pt2");
  const Program program(model.exported, BatchSize(2), at::kCPU);
  Session session(model.exported, model.file.bytes(), {}, 0, at::kCPU);
  const auto data = synthetic_data(model.exported, 0);
  PassProfiler profiler(program, session, *data);
  const std::vector<OperatorMemory> memory = profiler.memory();
  const auto of = [&](const char* name) { return memory[model.graph().find_operator(name)->index()]; };
  const SavedTensor input{SavedTensor::Side::kInput, 0};
  EXPECT_THAT(of("linear_2").saved, ElementsAre(input));  // its weight is there anyway
  EXPECT_THAT(of("gelu").saved, ElementsAre(input));
  EXPECT_THAT(of("layer_norm").saved, ElementsAre(input));
  EXPECT_GT(of("layer_norm").private_bytes, Bytes());  // mean and deviation of each row
  EXPECT_THAT(of("add_1").saved, IsEmpty());
  EXPECT_THAT(of("view").saved, IsEmpty());
  EXPECT_THAT(of("transpose").saved, IsEmpty());
  EXPECT_EQ(of("add_1").private_bytes, Bytes());
  EXPECT_GT(of("dropout").private_bytes, Bytes());  // its mask
}

}  // namespace
}  // namespace espalier
