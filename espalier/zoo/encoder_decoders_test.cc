#include "espalier/zoo/encoder_decoders.h"

#include <gmock/gmock.h>

#include "testing/graph_work.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using testing::matrix_flops;
using testing::refusal;
using testing::trained_parameters;

TEST(T5, HasThePublishedSize) {
  EXPECT_EQ(trained_parameters(build(T5{})), 60'506'624);  // t5-small of the transformers package
  EXPECT_EQ(trained_parameters(build(T5{.layers = 12, .hidden = 768, .heads = 12, .feed_forward = 3072})),
            222'903'552);  // t5-base
}

TEST(T5, SizesFollowTheFormulas) {
  for (const T5& m : {T5{}, T5{.layers = 3,
                            .hidden = 12,
                            .heads = 2,
                            .head_width = 5,
                            .feed_forward = 7,
                            .source = 3,
                            .target = 4,
                            .vocabulary = 9,
                            .buckets = 2}}) {
    const Graph graph = build(m);
    const std::int64_t h = m.hidden, f = m.feed_forward, i = m.heads * m.head_width, s = m.source,
                       t = m.target;
    EXPECT_EQ(trained_parameters(graph), m.vocabulary * h + 2 * m.buckets * m.heads +
                                             m.layers * (12 * h * i + 4 * h * f + 5 * h) + 2 * h);
    const std::int64_t encoder = 8 * s * h * i + 4 * s * s * i + 4 * s * h * f;
    const std::int64_t decoder =
        12 * t * h * i + 4 * s * h * i + 4 * t * t * i + 4 * s * t * i + 4 * t * h * f;
    const std::int64_t flops = m.layers * (encoder + decoder) + 2 * t * h * m.vocabulary;
    EXPECT_EQ(matrix_flops(graph, BatchSize(2)), static_cast<double>(2 * flops));
  }
}

TEST(Whisper, HasThePublishedSize) {
  EXPECT_EQ(trained_parameters(build(Whisper{})), 37'184'640);  // tiny
  const Whisper base{.layers = 6, .hidden = 512, .heads = 8, .feed_forward = 2048};
  EXPECT_EQ(trained_parameters(build(base)), 71'825'920);
}

TEST(Whisper, SizesFollowTheFormulas) {
  for (const Whisper& m : {Whisper{}, Whisper{.layers = 3,
                                      .hidden = 12,
                                      .heads = 2,
                                      .feed_forward = 7,
                                      .mels = 5,
                                      .source = 3,
                                      .target = 4,
                                      .vocabulary = 9}}) {
    const Graph graph = build(m);
    const std::int64_t h = m.hidden, f = m.feed_forward, s = m.source, t = m.target, l = m.layers;
    EXPECT_EQ(trained_parameters(graph),
              3 * m.mels * h + h + 3 * h * h + h + l * (4 * h * h + 2 * h * f + 8 * h + f) + 2 * h +
                  m.vocabulary * h + t * h + l * (8 * h * h + 2 * h * f + 13 * h + f) + 2 * h);
    const std::int64_t encoder = 8 * s * h * h + 4 * s * s * h + 4 * s * h * f;
    const std::int64_t decoder =
        12 * t * h * h + 4 * s * h * h + 4 * t * t * h + 4 * s * t * h + 4 * t * h * f;
    const std::int64_t flops =
        12 * s * m.mels * h + 6 * s * h * h + l * (encoder + decoder) + 2 * t * h * m.vocabulary;
    EXPECT_EQ(matrix_flops(graph, BatchSize(2)), static_cast<double>(2 * flops));
  }
}

TEST(EncoderDecoders, RefuseSizesThatDoNotFit) {
  EXPECT_THAT(refusal([] { build(T5{.buckets = 0}); }), HasSubstr("t5: every size is at least 1"));
  EXPECT_THAT(refusal([] { build(Whisper{.heads = 7}); }), HasSubstr("whisper: 7 heads do not divide"));
}

}  // namespace
}  // namespace espalier
