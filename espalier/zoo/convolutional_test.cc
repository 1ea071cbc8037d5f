#include "espalier/zoo/convolutional.h"

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

// ---- ResNet

std::int64_t resnet_parameters(std::array<std::int64_t, 4> blocks, std::int64_t expansion,
                               std::int64_t classes) {
  std::int64_t sum = 147 * 64 + 128, from = 64;
  for (std::size_t stage = 0; stage < 4; ++stage) {
    const std::int64_t c = std::int64_t{64} << stage, to = c * expansion;
    for (std::int64_t block = 0; block < blocks[stage]; ++block) {
      sum += expansion == 1 ? 9 * from * c + 9 * c * c + 4 * c : from * c + 9 * c * c + 4 * c * c + 12 * c;
      if (from != to) sum += from * to + 2 * to;
      from = to;
    }
  }
  return sum + from * classes + classes;
}

TEST(ResNet, HasThePublishedSizeAtEachDepth) {
  const std::array<std::pair<std::int64_t, std::int64_t>, 5> published{{{18, 11'689'512},
                                                                        {34, 21'797'672},
                                                                        {50, 25'557'032},
                                                                        {101, 44'549'160},
                                                                        {152, 60'192'808}}};  // torchvision
  for (const auto& [depth, parameters] : published)
    EXPECT_EQ(trained_parameters(build(ResNet{.depth = depth})), parameters) << depth;
  EXPECT_EQ(trained_parameters(build(ResNet{.depth = 34, .classes = 7})),
            resnet_parameters({3, 4, 6, 3}, 1, 7));
  EXPECT_EQ(trained_parameters(build(ResNet{.depth = 101, .classes = 3})),
            resnet_parameters({3, 4, 23, 3}, 4, 3));
}

// docs/models.md has torchvision's own exports: 90 and 229 operators.
TEST(ResNet, HasAnExportsOperators) {
  EXPECT_EQ(build(ResNet{.depth = 18}).operators().size(), 90U);
  const Graph graph = build(ResNet{});
  EXPECT_EQ(graph.operators().size(), 229U);
  EXPECT_EQ(count_operators(graph, "aten.conv2d.default"), 53U);
  EXPECT_EQ(count_operators(graph, "aten.batch_norm.default"), 53U);
}

// 4.089 billion multiply-adds a sample is what torchvision tells of ResNet-50.
TEST(ResNet, DoesThePublishedWork) {
  EXPECT_NEAR(matrix_flops(build(ResNet{}), BatchSize(1)), 2 * 4.089e9, 2 * 0.001e9);
  EXPECT_NEAR(matrix_flops(build(ResNet{.depth = 18}), BatchSize(1)), 2 * 1.814e9, 2 * 0.001e9);
}

TEST(ResNet, RefusesOtherDepths) {
  EXPECT_THAT(refusal([] { build(ResNet{.depth = 51}); }), HasSubstr("expected 18, 34, 50, 101 or 152"));
}

// ---- Inception

TEST(InceptionV3, HasThePublishedSize) {
  EXPECT_EQ(trained_parameters(build(InceptionV3{})), 27'161'264);  // torchvision, with the second classifier
  const Graph graph = build(InceptionV3{.auxiliary = InceptionV3::Auxiliary::kWithout});
  EXPECT_EQ(trained_parameters(graph), 23'834'568);
  EXPECT_EQ(graph.operators().size(), 409U);  // as torchvision's export, docs/models.md
  EXPECT_NEAR(matrix_flops(graph, BatchSize(1)), 2 * 5.713e9, 2 * 0.001e9);  // torchvision: 5.713 billion
}

TEST(InceptionV3, RefusesImagesThatEndTooEarly) {
  EXPECT_THAT(refusal([] { build(InceptionV3{.image = 40}); }),
              HasSubstr("the input is too small for this model"));
}

// ---- U-Net

std::int64_t two_convolutions_parameters(std::int64_t from, std::int64_t to) {
  return 9 * from * to + 9 * to * to + 2 * to;
}

TEST(UNet, SizesFollowTheFormulas) {
  EXPECT_EQ(trained_parameters(build(UNet{})), 31'030'658);              // two classes
  EXPECT_EQ(trained_parameters(build(UNet{.classes = 1})), 31'030'593);  // as it is widely counted
  for (const UNet& m : {UNet{}, UNet{.width = 3, .levels = 2, .image = 12, .channels = 5, .classes = 4}}) {
    const Graph graph = build(m);
    std::int64_t parameters = m.width * m.classes + m.classes,
                 flops = 2 * m.image * m.image * m.width * m.classes;
    for (std::int64_t l = 0; l <= m.levels; ++l) {
      const std::int64_t c = m.width << l, from = l == 0 ? m.channels : c / 2,
                         area = (m.image >> l) * (m.image >> l);
      parameters += two_convolutions_parameters(from, c);
      flops += 18 * area * (from * c + c * c);
      if (l == m.levels) break;
      parameters += 8 * c * c + c + two_convolutions_parameters(2 * c, c);
      flops += 18 * area * 3 * c * c + 2 * area * 2 * c * c;  // each place of the smaller image makes four
    }
    EXPECT_EQ(trained_parameters(graph), parameters);
    EXPECT_EQ(matrix_flops(graph, BatchSize(2)), static_cast<double>(2 * flops));
  }
}

TEST(UNet, RefusesImagesThatCannotBeHalved) {
  EXPECT_THAT(refusal([] { build(UNet{.image = 24}); }), HasSubstr("cannot be halved 4 times"));
}

// ---- WaveNet

TEST(WaveNet, SizesFollowTheFormulas) {
  for (const WaveNet& m :
       {WaveNet{}, WaveNet{.stacks = 4, .layers = 36},
        WaveNet{.stacks = 1, .layers = 3, .channels = 5, .skip = 4, .classes = 6, .length = 7}}) {
    const Graph graph = build(m);
    const std::int64_t c = m.channels, s = m.skip, v = m.classes, n = m.layers;
    EXPECT_EQ(trained_parameters(graph),
              v * c + n * (4 * c * c + 2 * c + c * s + s) + (n - 1) * (c * c + c) + s * s + s + s * v + v);
    const std::int64_t flops = 2 * m.length * (n * (4 * c * c + c * s) + (n - 1) * c * c + s * s + s * v);
    EXPECT_EQ(matrix_flops(graph, BatchSize(3)), static_cast<double>(3 * flops));
  }
}

TEST(WaveNet, RefusesStacksThatDoNotDivide) {
  EXPECT_THAT(refusal([] { build(WaveNet{.stacks = 5}); }),
              HasSubstr("5 stacks do not divide the 18 layers"));
  EXPECT_THAT(refusal([] { build(WaveNet{.stacks = 1, .layers = 31}); }), HasSubstr("at most 30 layers"));
}

}  // namespace
}  // namespace espalier
