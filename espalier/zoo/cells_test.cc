#include "espalier/zoo/cells.h"

#include <gmock/gmock.h>

#include "testing/graph_work.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using testing::matrix_flops;
using testing::refusal;
using testing::trained_parameters;

const NasNet kMobile{.cells = 4, .filters = 44, .stem = 32, .image = 224, .reach = NasNet::Reach::kReduction};

// Keras tells trained parameters of both: NASNetLarge 88,753,150, NASNetMobile 5,289,978.
TEST(NasNet, HasThePublishedSize) {
  EXPECT_EQ(trained_parameters(build(NasNet{})), 88'753'150);
  EXPECT_EQ(trained_parameters(build(kMobile)), 5'289'978);
}

// The paper counts 23.8 billion multiply-adds for the large one and 564 million for the mobile one.
TEST(NasNet, DoesThePublishedWork) {
  EXPECT_NEAR(matrix_flops(build(NasNet{}), BatchSize(1)), 2 * 23.8e9, 2 * 0.4e9);
  EXPECT_NEAR(matrix_flops(build(kMobile), BatchSize(1)), 2 * 564e6, 2 * 20e6);
}

TEST(AmoebaNet, HasAboutThePublishedSize) {
  EXPECT_NEAR(static_cast<double>(trained_parameters(build(AmoebaNet{}))), 82e6, 1e6);  // GPipe, table 1: 82M
}

TEST(Cells, ACellReadsTheTwoBeforeIt) {
  const Graph graph = build(NasNet{.cells = 3, .filters = 8, .stem = 4, .image = 64, .classes = 5});
  const OperatorId joined = *graph.find_operator("cells.0.cat");
  std::size_t next = 0, after = 0;
  for (const OperatorId reader : graph.successors(joined)) {
    next += graph.op(reader).module_path.rfind("cells.1", 0) == 0 ? 1 : 0;
    after += graph.op(reader).module_path.rfind("cells.2", 0) == 0 ? 1 : 0;
  }
  EXPECT_GE(next, 1U);
  EXPECT_GE(after, 1U);
}

TEST(Cells, RefuseSizesThatDoNotFit) {
  EXPECT_THAT(refusal([] { build(NasNet{.filters = 42}); }), HasSubstr("a multiple of 4"));
  EXPECT_THAT(refusal([] { build(AmoebaNet{.layers = 4}); }), HasSubstr("a multiple of 3"));
  EXPECT_THAT(refusal([] { build(AmoebaNet{.filters = 12}); }), HasSubstr("a multiple of 8"));
  EXPECT_THAT(refusal([] { build(AmoebaNet{.image = 100}); }), HasSubstr("a multiple of 32"));
}

}  // namespace
}  // namespace espalier
