#include "espalier/zoo/recommenders.h"

#include <gmock/gmock.h>

#include "testing/graph_work.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using testing::count_operators;
using ::testing::HasSubstr;
using testing::matrix_flops;
using testing::refusal;
using testing::trained_parameters;

std::int64_t width_of(const Graph& graph, const char* op) {
  return *graph.tensor(graph.op(*graph.find_operator(op)).outputs[0]).sizes.back().constant();
}

TEST(Dlrm, HasThePublishedSize) {
  const Graph graph = build(Dlrm{});
  const std::int64_t dense = 7 * 4 * (4096 * 4096 + 4096), tables = 7 * 1'000'000 * 64;
  EXPECT_NEAR(static_cast<double>(dense), 470e6, 0.2e6);   // "470 M" in the dense branches
  EXPECT_NEAR(static_cast<double>(tables), 448e6, 0.2e6);  // "448 M" in the tables
  const std::int64_t top = 29'120 * 4096 + 3 * 4096 * 4096 + 4 * 4096 + 4096 + 1;
  EXPECT_EQ(trained_parameters(graph), dense + tables + top);
  EXPECT_EQ(width_of(graph, "top.cat"), 29'120);
  EXPECT_EQ(width_of(build(Dlrm{.reduction = Dlrm::Bag::kSideBySide}), "top.cat"), 73'472);
}

TEST(Dlrm, SizesFollowTheFormulas) {
  for (const Dlrm& m :
       {Dlrm{},
        Dlrm{
            .dense = 1, .sparse = 7, .layers = 3, .width = 5, .rows = 11, .embedding = 3, .bag = 4, .top = 2},
        Dlrm{.dense = 4, .sparse = 0, .layers = 1, .width = 6, .top = 1}}) {
    const Graph graph = build(m);
    const std::int64_t w = m.width, joined = m.dense * w + m.sparse * m.embedding;
    EXPECT_EQ(trained_parameters(graph), m.dense * m.layers * (w * w + w) + m.sparse * m.rows * m.embedding +
                                             joined * w + w + (m.top - 1) * (w * w + w) + w + 1);
    const std::int64_t flops =
        2 * m.dense * m.layers * w * w + 2 * joined * w + 2 * (m.top - 1) * w * w + 2 * w;
    EXPECT_EQ(matrix_flops(graph, BatchSize(3)), static_cast<double>(3 * flops));
    EXPECT_EQ(count_operators(graph, "aten.embedding_bag.default"), static_cast<std::size_t>(m.sparse));
  }
}

std::int64_t uno_parameters(const CandleUno& m) {
  const auto n = static_cast<std::int64_t>(m.features.size());
  const std::int64_t w = m.width, b = m.biases == CandleUno::Biases::kWith ? 1 : 0;
  std::int64_t sum = n * (m.layers - 1) * w * w + (n * w + m.doses) * w + (m.head - 1) * w * w +
                     b * (n * m.layers + m.head) * w + w + b;
  for (const std::int64_t features : m.features) sum += features * w;
  return sum;
}

TEST(CandleUno, HasThePublishedSize) {
  const std::int64_t towers = 7 * 4 * (4096 * 4096 + 4096);
  EXPECT_NEAR(static_cast<double>(towers), 470e6, 0.2e6);  // "470 M in branches"
  EXPECT_EQ(trained_parameters(build(CandleUno{})),
            towers + 28'672 * 4096 + 3 * 4096 * 4096 + 4 * 4096 + 4096 + 1);
}

TEST(CandleUno, SizesFollowTheFormulas) {
  const CandleUno small{.features = {3, 5}, .doses = 2, .layers = 2, .width = 4, .head = 3};
  for (const CandleUno& m : {CandleUno{}, flexflow_candle_uno(), small}) {
    const Graph graph = build(m);
    EXPECT_EQ(trained_parameters(graph), uno_parameters(m));
    CandleUno plain = m;
    plain.biases = CandleUno::Biases::kWithout;  // each weight multiplies and adds once a sample
    EXPECT_EQ(matrix_flops(graph, BatchSize(5)), static_cast<double>(5 * 2 * uno_parameters(plain)));
  }
}

TEST(CandleUno, FlexFlowsDosesPassBy) {
  const Graph graph = build(flexflow_candle_uno());
  EXPECT_EQ(width_of(graph, "head.cat"), 5 * 4192 + 2);
  EXPECT_EQ(graph.predecessors(*graph.find_operator("head.cat")).size(), 5U);
}

TEST(Recommenders, RefuseWhatHasNoBranches) {
  EXPECT_THAT(refusal([] { build(Dlrm{.dense = 0, .sparse = 0}); }),
              HasSubstr("at least one branch, dense or sparse"));
  EXPECT_THAT(refusal([] { build(CandleUno{.features = {}}); }), HasSubstr("at least one tower"));
}

}  // namespace
}  // namespace espalier
