#include "espalier/app/catalog.h"

#include <gmock/gmock.h>

#include "espalier/app/training_graph.h"
#include "espalier/graph/text.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

TEST(OrderCatalog, HasEveryOrderOnceAndFindsItByName) {
  const auto orders = traversal_orders();
  ASSERT_EQ(order_catalog().size(), orders.size());
  for (std::size_t i = 0; i < orders.size(); ++i) {
    EXPECT_EQ(order_catalog()[i].order, orders[i]);
    EXPECT_FALSE(order_catalog()[i].what.empty());
    EXPECT_EQ(find_order(to_text(orders[i])), orders[i]);
  }
  EXPECT_THAT(testing::refusal([] { find_order("topo_lif"); }), HasSubstr("did you mean 'topo_lifo'?"));
}

TEST(TrainingGraph, KeepsWhatAnAcceleratorKeeps) {
  const Graph forward = parse_graph(
      "x = input() : f32[b,8]\n"
      "w = parameter(w) : f32[8,8]\n"
      "y = linear(x, w) : f32[b,8]\n"
      "z = relu(y) : f32[b,8]\n"
      "loss = mean(z)\n");
  const Graph training = training_graph(forward);
  const auto reads = [&](const char* name) {
    std::vector<std::string> names;
    for (const TensorId id : training.op(*training.find_operator(name)).inputs) {
      names.push_back(training.tensor(id).name);
    }
    return names;
  };
  EXPECT_THAT(reads("z.backward"), ::testing::ElementsAre("z.grad", "z")) << "relu keeps its output";
  EXPECT_THAT(reads("y.backward"), ::testing::ElementsAre("y.grad", "x")) << "x needs no gradient, so not w";
}

}  // namespace
}  // namespace espalier
