// Recurrent layers and graph networks.

#include <gmock/gmock.h>

#include "espalier/zoo/graph_networks.h"
#include "espalier/zoo/recurrent.h"
#include "testing/graph_work.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using testing::matrix_flops;
using testing::refusal;
using testing::trained_parameters;

TEST(RecurrentLanguageModel, SizesFollowTheFormulas) {
  EXPECT_EQ(trained_parameters(build(RecurrentLanguageModel{})), 66'022'000);  // "66M", Zaremba's large model
  for (const RecurrentLanguageModel& m :
       {RecurrentLanguageModel{},
        RecurrentLanguageModel{.layers = 3, .hidden = 4, .vocabulary = 9, .length = 5}}) {
    const Graph graph = build(m);
    const std::int64_t h = m.hidden, v = m.vocabulary;
    EXPECT_EQ(trained_parameters(graph), v * h + m.layers * (8 * h * h + 4 * h) + v * h + v);
    EXPECT_EQ(matrix_flops(graph, BatchSize(2)),
              static_cast<double>(2 * m.length * (16 * m.layers * h * h + 2 * h * v)));
  }
  EXPECT_THAT(refusal([] { build(RecurrentLanguageModel{.length = 0}); }),
              HasSubstr("rnnlm: every size is at least 1"));
}

TEST(ChunkedGraphNetwork, SizesFollowTheFormulas) {
  for (const ChunkedGraphNetwork& m :
       {ChunkedGraphNetwork{},
        ChunkedGraphNetwork{
            .chunks = 3, .layers = 2, .vertices = 5, .edges = 7, .features = 4, .hidden = 6, .classes = 3}}) {
    const Graph graph = build(m);
    const std::int64_t h = m.hidden;
    EXPECT_EQ(trained_parameters(graph),
              m.features * h + h + (m.layers - 1) * (h * h + h) + h * m.classes + m.classes);
    const std::int64_t flops =
        2 * m.chunks * m.vertices * (m.features * h + (m.layers - 1) * h * h + h * m.classes);
    EXPECT_EQ(matrix_flops(graph, BatchSize(2)), static_cast<double>(2 * flops));
  }
}

// Chunk c of a layer waits for chunks 0…c of the layer below, and for no later one.
TEST(ChunkedGraphNetwork, AChunkWaitsForEarlierChunks) {
  const Graph graph = build(ChunkedGraphNetwork{.chunks = 4, .layers = 3});
  for (std::int64_t c = 0; c < 4; ++c) {
    const OperatorId all = *graph.find_operator("layers.2.chunks." + std::to_string(c) + ".all");
    EXPECT_EQ(graph.predecessors(all).size(), static_cast<std::size_t>(c + 1));
    for (const OperatorId before : graph.predecessors(all))
      EXPECT_LE(graph.op(before).module_path, "layers.1.chunks." + std::to_string(c));
  }
}

}  // namespace
}  // namespace espalier
