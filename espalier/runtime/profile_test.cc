#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "espalier/cost/cost_table.h"
#include "espalier/runtime/loaded_model.h"
#include "espalier/runtime/pass_profiler.h"
#include "espalier/runtime/plans_for_tests.h"
#include "espalier/runtime/runtime.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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
