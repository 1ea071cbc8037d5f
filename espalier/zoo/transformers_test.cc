#include "espalier/zoo/transformers.h"

#include <gmock/gmock.h>

#include <array>

#include "testing/graph_work.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using testing::count_operators;
using ::testing::HasSubstr;
using testing::matrix_flops;
using testing::refusal;
using testing::trained_parameters;

// ---- GPT

std::int64_t gpt_parameters(const Gpt& m) {
  const std::int64_t h = m.hidden;
  return m.vocabulary * h + m.positions * h + m.layers * (12 * h * h + 13 * h) + 2 * h;
}

TEST(Gpt, HasThePublishedSize) {
  EXPECT_EQ(trained_parameters(build(Gpt{})), 124'439'808);  // GPT-2 small
  // GPT-2 medium, large and XL as the transformers package has them.
  EXPECT_EQ(gpt_parameters({.layers = 24, .hidden = 1024}), 354'823'168);
  EXPECT_EQ(gpt_parameters({.layers = 36, .hidden = 1280}), 774'030'080);
  EXPECT_EQ(gpt_parameters({.layers = 48, .hidden = 1600}), 1'557'611'200);
}

TEST(Gpt, SizesFollowTheFormulas) {
  for (const Gpt& m : {Gpt{}, Gpt{.layers = 2, .hidden = 12, .heads = 3, .positions = 5, .vocabulary = 7},
                       Gpt{.layers = 1, .hidden = 64, .heads = 1, .positions = 1, .vocabulary = 1}}) {
    const Graph graph = build(m);
    EXPECT_EQ(trained_parameters(graph), gpt_parameters(m));
    const std::int64_t h = m.hidden, p = m.positions;
    for (const std::int64_t b : {1, 6}) {
      const std::int64_t flops = m.layers * (24 * p * h * h + 4 * p * p * h) + 2 * p * h * m.vocabulary;
      EXPECT_EQ(matrix_flops(graph, BatchSize(b)), static_cast<double>(b * flops));
    }
  }
}

// ---- BERT

TEST(Bert, HasThePublishedSize) {
  const std::int64_t heads = 768 * 768 + 3 * 768 + 30'522 + 2 * 768 + 2;  // 624,188
  EXPECT_EQ(trained_parameters(build(Bert{})), 109'482'240 + heads);      // with pooler, and the heads
  EXPECT_EQ(trained_parameters(build(Bert{})),
            110'106'428);  // BertForPreTraining of the transformers package
  const Bert large{.layers = 24, .hidden = 1024, .heads = 16, .feed_forward = 4096};
  EXPECT_EQ(trained_parameters(build(large)), 336'226'108);
}

TEST(Bert, SizesFollowTheFormulas) {
  for (const Bert& m :
       {Bert{.layers = 2, .hidden = 12, .heads = 3, .feed_forward = 20, .positions = 5, .vocabulary = 7},
        Bert{.layers = 1, .hidden = 64, .heads = 8, .feed_forward = 1, .positions = 9, .vocabulary = 30}}) {
    const Graph graph = build(m);
    const std::int64_t h = m.hidden, f = m.feed_forward, p = m.positions, v = m.vocabulary;
    EXPECT_EQ(trained_parameters(graph), (v + p + 2) * h + 2 * h +
                                             m.layers * (4 * h * h + 2 * h * f + 9 * h + f) + (h * h + h) +
                                             h * h + 3 * h + v + 2 * h + 2);
    const std::int64_t flops = m.layers * (8 * p * h * h + 4 * p * h * f + 4 * p * p * h) + 2 * p * h * h +
                               2 * p * h * v + 2 * h * h + 4 * h;
    EXPECT_EQ(matrix_flops(graph, BatchSize(3)), static_cast<double>(3 * flops));
  }
}

// ---- Llama

std::int64_t llama_parameters(const Llama& m) {
  const std::int64_t h = m.hidden, f = m.feed_forward, w = h / m.heads * m.key_value_heads;
  const std::int64_t parts = m.experts > 0 ? m.experts : 1, router = m.experts * h;
  return 2 * m.vocabulary * h + h + m.layers * (2 * h * h + 2 * h * w + 2 * h + parts * 3 * h * f + router);
}

TEST(Llama, HasThePublishedSize) {
  EXPECT_EQ(trained_parameters(build(Llama{})), 6'738'415'616);  // Llama-7B, and Llama 2 7B
  EXPECT_EQ(
      trained_parameters(build(Llama{.key_value_heads = 8, .feed_forward = 14'336, .vocabulary = 128'256})),
      8'030'261'248);  // Llama 3 8B
  EXPECT_EQ(trained_parameters(build(Llama{.key_value_heads = 8, .feed_forward = 14'336, .experts = 8})),
            46'702'792'704);  // Mixtral 8×7B
}

TEST(Llama, SizesFollowTheFormulas) {
  const std::array<Llama, 3> models{{{.layers = 2,
                                      .hidden = 32,
                                      .heads = 4,
                                      .key_value_heads = 2,
                                      .feed_forward = 20,
                                      .positions = 5,
                                      .vocabulary = 7},
                                     {.layers = 1,
                                      .hidden = 12,
                                      .heads = 3,
                                      .key_value_heads = 1,
                                      .feed_forward = 9,
                                      .positions = 8,
                                      .vocabulary = 30},
                                     {.layers = 2,
                                      .hidden = 8,
                                      .heads = 2,
                                      .key_value_heads = 2,
                                      .feed_forward = 6,
                                      .positions = 7,
                                      .vocabulary = 9,
                                      .experts = 3}}};
  for (const Llama& m : models) {
    const Graph graph = build(m);
    EXPECT_EQ(trained_parameters(graph), llama_parameters(m));
    const std::int64_t h = m.hidden, f = m.feed_forward, p = m.positions, w = h / m.heads * m.key_value_heads;
    const std::int64_t capacity = m.experts > 0 ? (p * m.experts_per_token + m.experts - 1) / m.experts : 0;
    const std::int64_t inner =
        m.experts > 0 ? 6 * m.experts * capacity * h * f + 2 * p * h * m.experts : 6 * p * h * f;
    const std::int64_t flops =
        m.layers * (4 * p * h * h + 4 * p * h * w + 4 * p * p * h + inner) + 2 * p * h * m.vocabulary;
    const std::int64_t rotations = p * h / m.heads;
    for (const std::int64_t b : {1, 4})
      EXPECT_EQ(matrix_flops(graph, BatchSize(b)), static_cast<double>(b * flops + rotations));
  }
}

TEST(Llama, EachStageMakesItsOwnRotations) {
  const Graph graph = build(Llama{.layers = 1,
                                  .hidden = 8,
                                  .heads = 2,
                                  .key_value_heads = 2,
                                  .feed_forward = 6,
                                  .positions = 3,
                                  .vocabulary = 5});
  EXPECT_TRUE(graph.op(*graph.find_operator("rotary.cos")).duplicable);
  EXPECT_TRUE(graph.op(*graph.find_operator("rotary.sin")).duplicable);
  EXPECT_FALSE(graph.op(*graph.find_operator("layers.0.attn.q_rotated")).duplicable);
}

TEST(Llama, RefusesWhatDoesNotDivide) {
  EXPECT_THAT(refusal([] { build(Llama{.key_value_heads = 5}); }),
              HasSubstr("5 heads of keys and values do not divide"));
  EXPECT_THAT(refusal([] { build(Llama{.hidden = 12, .heads = 4, .key_value_heads = 4}); }),
              HasSubstr("hidden / heads = 3, is even"));
  EXPECT_THAT(refusal([] { build(Llama{.experts = 2, .experts_per_token = 3}); }),
              HasSubstr("at most as many experts"));
  EXPECT_THAT(refusal([] { build(Llama{.layers = 0}); }), HasSubstr("llama: every size is at least 1"));
  EXPECT_THAT(refusal([] { build(Gpt{.heads = 7}); }), HasSubstr("gpt: 7 heads do not divide"));
  EXPECT_THAT(refusal([] { build(Bert{.vocabulary = 0}); }), HasSubstr("bert: every size is at least 1"));
}

// ---- Transformer-XL

TEST(TransformerXl, HasThePublishedSize) {
  EXPECT_EQ(trained_parameters(build(TransformerXl{})), 41'055'436);  // "41M" for enwik8
}

TEST(TransformerXl, SizesFollowTheFormulas) {
  for (const TransformerXl& m :
       {TransformerXl{},
        TransformerXl{
            .layers = 3, .hidden = 12, .heads = 3, .feed_forward = 7, .positions = 5, .vocabulary = 9},
        TransformerXl{.layers = 2,
        .hidden = 8,
        .heads = 2,
        .feed_forward = 7,
        .positions = 5,
        .vocabulary = 9,
        .segments = 3}}) {
    const Graph graph = build(m);
    const std::int64_t h = m.hidden, f = m.feed_forward, p = m.positions, v = m.vocabulary;
    EXPECT_EQ(trained_parameters(graph), v * h + v + 2 * h + m.layers * (5 * h * h + 2 * h * f + 5 * h + f));
    const std::int64_t each = 12 * p * h * h + 2 * p * h * h + 12 * p * p * h + 4 * p * h * f;
    for (const std::int64_t b : {1, 3}) {
      const std::int64_t flops = m.segments * (m.layers * (b * each + 4 * p * h * h) + b * 2 * p * h * v);
      EXPECT_EQ(matrix_flops(graph, BatchSize(b)), static_cast<double>(flops));
    }
  }
}

// Layer 0 of segment 1 reads what layer 0 of segment 0 read, but sends no gradient back to it.
TEST(TransformerXl, SegmentsPassStatesOnWithoutGradients) {
  const Graph graph = build(TransformerXl{.layers = 2,
                                          .hidden = 8,
                                          .heads = 2,
                                          .feed_forward = 8,
                                          .positions = 4,
                                          .vocabulary = 9,
                                          .segments = 2});
  const Operator& memory = graph.op(*graph.find_operator("layers.0.memory"));
  EXPECT_EQ(memory.inputs, graph.op(*graph.find_operator("embedding")).outputs);
  EXPECT_FALSE(graph.tensors()[memory.outputs[0].index()].requires_grad);
  const Operator& all = graph.op(*graph.find_operator("layers.0.segment_1.attention.all"));
  EXPECT_EQ(all.inputs[0], memory.outputs[0]);
}

}  // namespace
}  // namespace espalier