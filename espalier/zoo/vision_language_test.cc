#include "espalier/zoo/vision_language.h"

#include <gmock/gmock.h>

#include "testing/graph_work.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using testing::matrix_flops;
using testing::refusal;
using testing::trained_parameters;

std::int64_t layer_parameters(std::int64_t h, std::int64_t f) {
  return 4 * h * h + 2 * h * f + 9 * h + f;
}
std::int64_t layer_flops(std::int64_t n, std::int64_t h, std::int64_t f) {
  return 8 * n * h * h + 4 * n * n * h + 4 * n * h * f;
}
std::int64_t patches(const ImageTower& tower) {
  return tower.image / tower.patch * (tower.image / tower.patch);
}
std::int64_t tower_flops(const ImageTower& t) {
  return 6 * patches(t) * t.patch * t.patch * t.hidden +
         t.layers * layer_flops(patches(t) + 1, t.hidden, t.feed_forward);
}

const ImageTower kSmallTower{
    .image = 12, .patch = 4, .layers = 3, .hidden = 10, .heads = 5, .feed_forward = 7};

TEST(VisionTransformer, HasThePublishedSize) {
  EXPECT_EQ(trained_parameters(build(VisionTransformer{})), 86'567'656);  // ViT-B/16
  const ImageTower large{.layers = 24, .hidden = 1024, .heads = 16, .feed_forward = 4096};
  EXPECT_EQ(trained_parameters(build(VisionTransformer{.tower = large})), 304'326'632);  // ViT-L/16
}

TEST(VisionTransformer, SizesFollowTheFormulas) {
  for (const VisionTransformer& m :
       {VisionTransformer{}, VisionTransformer{.tower = kSmallTower, .classes = 3}}) {
    const Graph graph = build(m);
    const std::int64_t h = m.tower.hidden, n = patches(m.tower), area = m.tower.patch * m.tower.patch;
    EXPECT_EQ(trained_parameters(graph), 3 * area * h + 2 * h + (n + 1) * h +
                                             m.tower.layers * layer_parameters(h, m.tower.feed_forward) +
                                             2 * h + m.classes * h + m.classes);
    EXPECT_EQ(matrix_flops(graph, BatchSize(3)),
              static_cast<double>(3 * (tower_flops(m.tower) + 2 * h * m.classes)));
  }
}

TEST(Clip, HasThePublishedSize) {
  EXPECT_EQ(trained_parameters(build(Clip{})), 151'277'313);  // ViT-B/32
  const ImageTower large{.patch = 14, .layers = 24, .hidden = 1024, .heads = 16, .feed_forward = 4096};
  const Clip::Text text{.hidden = 768, .heads = 12, .feed_forward = 3072};
  EXPECT_EQ(trained_parameters(build(Clip{.image = large, .text = text, .embedding = 768})),
            427'616'513);  // ViT-L/14
}

TEST(Clip, SizesFollowTheFormulas) {
  const Clip small{
      .image = kSmallTower,
      .text = {.layers = 2, .hidden = 6, .heads = 3, .feed_forward = 5, .positions = 4, .vocabulary = 9},
      .embedding = 11};
  for (const Clip& m : {Clip{}, small}) {
    const Graph graph = build(m);
    const std::int64_t h = m.image.hidden, n = patches(m.image), area = m.image.patch * m.image.patch;
    const std::int64_t t = m.text.hidden, e = m.embedding;
    EXPECT_EQ(trained_parameters(graph),
              3 * area * h + h + (n + 1) * h + m.image.layers * layer_parameters(h, m.image.feed_forward) +
                  4 * h + e * h + m.text.vocabulary * t + m.text.positions * t +
                  m.text.layers * layer_parameters(t, m.text.feed_forward) + 2 * t + e * t + 1);
    for (const std::int64_t b : {1, 5}) {
      const std::int64_t each = tower_flops(m.image) + 2 * h * e +
                                m.text.layers * layer_flops(m.text.positions, t, m.text.feed_forward) +
                                2 * t * e;
      EXPECT_EQ(matrix_flops(graph, BatchSize(b)), static_cast<double>(b * each + 2 * b * b * e));
    }
  }
}

TEST(VisionLanguage, HasThePublishedSize) {
  const std::int64_t encoder = 303'507'456, projector = 20'979'712, language = 6'738'415'616;
  EXPECT_EQ(trained_parameters(build(VisionLanguage{})), encoder + projector + language);  // LLaVA-1.5 7B
  EXPECT_EQ(trained_parameters(build(VisionLanguage{.encoders = 3})), 3 * (encoder + projector) + language);
}

TEST(VisionLanguage, TheLanguageModelReadsAllPatches) {
  const VisionLanguage m{.encoders = 2,
                         .encoder = kSmallTower,
                         .language = {.layers = 1,
                                      .hidden = 12,
                                      .heads = 3,
                                      .key_value_heads = 3,
                                      .feed_forward = 5,
                                      .positions = 4,
                                      .vocabulary = 8}};
  const std::int64_t n = patches(kSmallTower), all = 2 * n + 4, h = 10, big = 12;
  const std::int64_t projector = 2 * n * h * big + 2 * n * big * big;
  const std::int64_t language =
      8 * all * big * big + 4 * all * all * big + 6 * all * big * 5 + 2 * 4 * big * 8;
  const std::int64_t rotations = all * big / 3;
  EXPECT_EQ(matrix_flops(build(m), BatchSize(2)),
            static_cast<double>(2 * (2 * (tower_flops(kSmallTower) + projector) + language) + rotations));
}

TEST(CoAttention, SizesFollowTheFormulas) {
  for (const CoAttention& m : {CoAttention{}, CoAttention{.word_layers = 3,
                                              .region_layers = 2,
                                              .connections = 1,
                                              .hidden = 12,
                                              .heads = 3,
                                              .feed_forward = 5,
                                              .region_hidden = 8,
                                              .region_heads = 2,
                                              .region_feed_forward = 7,
                                              .positions = 4,
                                              .regions = 3,
                                              .region_features = 6,
                                              .region_classes = 9,
                                              .vocabulary = 11}}) {
    const Graph graph = build(m);
    const std::int64_t h = m.hidden, f = m.feed_forward, r = m.region_hidden, g = m.region_feed_forward;
    const std::int64_t v = m.vocabulary, p = m.positions, n = m.regions, c = m.region_classes,
                       x = m.region_features;
    EXPECT_EQ(trained_parameters(graph),
              v * h + p * h + 2 * h + x * r + 9 * r + m.word_layers * layer_parameters(h, f) +
                  m.region_layers * layer_parameters(r, g) +
                  m.connections * (4 * r * (h + r) + 6 * r + 2 * h * f + f + 2 * r * g + g + 6 * (h + r)) +
                  h * r + h * h + 3 * h + v + 2 * r * r + 7 * r + r * c + c + 2);
    const std::int64_t connection = 4 * (p * h + n * r) * r + 4 * (p * h + n * r) * r + 8 * p * n * r +
                                    4 * p * h * f + 4 * n * r * g;  // queries and results; keys and values
    const std::int64_t heads =
        2 * h * r + 2 * p * h * h + 2 * p * h * v + 2 * r * r + 2 * n * r * r + 2 * n * r * c + 4 * r;
    const std::int64_t flops = 2 * n * (x + 5) * r + m.word_layers * layer_flops(p, h, f) +
                               m.region_layers * layer_flops(n, r, g) + m.connections * connection + heads;
    EXPECT_EQ(matrix_flops(graph, BatchSize(2)), static_cast<double>(2 * flops));
  }
}

TEST(VisionLanguage, RefuseSizesThatDoNotFit) {
  EXPECT_THAT(refusal([] { build(Clip{.image = {.patch = 15}}); }),
              HasSubstr("clip: patches of 15 pixels do not divide"));
  EXPECT_THAT(refusal([] { build(CoAttention{.connections = 7}); }), HasSubstr("at most 6 connections"));
}

}  // namespace
}  // namespace espalier
