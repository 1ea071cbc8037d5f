#include "espalier/zoo/convolutional.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/zoo/model_builder.h"

namespace espalier {
namespace {

using Bias = ModelBuilder::Bias;
using Window = ModelBuilder::Window;

constexpr const char* kMaxPool = "aten.max_pool2d.default";
constexpr const char* kAveragePool = "aten.avg_pool2d.default";
constexpr const char* kRelu = "aten.relu.default";

// ---- ResNet

struct ResNetShape {
  std::int64_t depth;
  std::array<std::int64_t, 4> blocks;
  std::int64_t expansion;  // a bottleneck gives four times its channels
};
constexpr std::array<ResNetShape, 5> kResNets{{{18, {2, 2, 2, 2}, 1},
                                               {34, {3, 4, 6, 3}, 1},
                                               {50, {3, 4, 6, 3}, 4},
                                               {101, {3, 4, 23, 3}, 4},
                                               {152, {3, 8, 36, 3}, 4}}};

TensorId residual_block(ModelBuilder& out, TensorId x, std::int64_t channels, std::int64_t stride,
                        std::int64_t expansion) {
  const std::int64_t given = channels * expansion;
  TensorId inner;
  if (expansion == 1) {
    inner = out.conv_norm_relu("1", x, channels, ModelBuilder::square(3, stride));
    inner = out.conv_norm("2", inner, given, ModelBuilder::square(3));
  } else {
    inner = out.conv_norm_relu("1", x, channels, {});
    inner = out.conv_norm_relu("2", inner, channels, ModelBuilder::square(3, stride));
    inner = out.conv_norm("3", inner, given, {});
  }
  const bool same = stride == 1 && out.size(x, 1) == given;
  const TensorId shortcut = same ? x : out.conv_norm("shortcut", x, given, {.stride = stride});
  return out.map("relu", kRelu, {out.map("sum", "aten.add.Tensor", {inner, shortcut})});
}

// ---- Inception

// A row of convolutions, each with norm and relu, one after the other.
struct RowStep {
  std::int64_t channels;
  Window window = {};
};
constexpr Window kThree{.kernel = {3, 3}, .padding = {1, 1}};
constexpr Window kFive{.kernel = {5, 5}, .padding = {2, 2}};
constexpr Window kHalving{.kernel = {3, 3}, .stride = 2};
constexpr Window kWide7{.kernel = {1, 7}, .padding = {0, 3}};
constexpr Window kHigh7{.kernel = {7, 1}, .padding = {3, 0}};
constexpr Window kWide3{.kernel = {1, 3}, .padding = {0, 1}};
constexpr Window kHigh3{.kernel = {3, 1}, .padding = {1, 0}};

TensorId row_of(ModelBuilder& out, const std::string& name, TensorId x, const std::vector<RowStep>& steps) {
  const auto scope = out.inside(name);
  for (std::size_t i = 0; i < steps.size(); ++i)
    x = out.conv_norm_relu(std::to_string(i), x, steps[i].channels, steps[i].window);
  return x;
}

TensorId pooled_branch(ModelBuilder& out, TensorId x, std::int64_t channels) {
  const TensorId pooled = out.pool("pool.average", kAveragePool, x, kThree);
  return row_of(out, "pool", pooled, {{channels}});
}

TensorId inception_a(ModelBuilder& out, TensorId x, std::int64_t pooled) {
  return out.concat(
      "cat",
      {row_of(out, "1x1", x, {{64}}), row_of(out, "5x5", x, {{48}, {64, kFive}}),
       row_of(out, "3x3", x, {{64}, {96, kThree}, {96, kThree}}), pooled_branch(out, x, pooled)},
      1);
}

TensorId inception_b(ModelBuilder& out, TensorId x) {
  return out.concat("cat",
                    {row_of(out, "3x3", x, {{384, kHalving}}),
                     row_of(out, "3x3_twice", x, {{64}, {96, kThree}, {96, kHalving}}),
                     out.pool("pool", kMaxPool, x, kHalving)},
                    1);
}

TensorId inception_c(ModelBuilder& out, TensorId x, std::int64_t c) {
  return out.concat("cat",
                    {row_of(out, "1x1", x, {{192}}), row_of(out, "7x7", x, {{c}, {c, kWide7}, {192, kHigh7}}),
                     row_of(out, "7x7_twice", x, {{c}, {c, kHigh7}, {c, kWide7}, {c, kHigh7}, {192, kWide7}}),
                     pooled_branch(out, x, 192)},
                    1);
}

TensorId inception_d(ModelBuilder& out, TensorId x) {
  return out.concat("cat",
                    {row_of(out, "3x3", x, {{192}, {320, kHalving}}),
                     row_of(out, "7x7", x, {{192}, {192, kWide7}, {192, kHigh7}, {192, kHalving}}),
                     out.pool("pool", kMaxPool, x, kHalving)},
                    1);
}

TensorId inception_e(ModelBuilder& out, TensorId x) {
  const auto both_ways = [&](const std::string& name, TensorId from) {
    return out.concat(name + ".cat",
                      {row_of(out, name + ".wide", from, {{384, kWide3}}),
                       row_of(out, name + ".high", from, {{384, kHigh3}})},
                      1);
  };
  const TensorId one = row_of(out, "1x1", x, {{320}});
  const TensorId three = both_ways("3x3", row_of(out, "3x3", x, {{384}}));
  const TensorId twice = both_ways("3x3_twice", row_of(out, "3x3_twice", x, {{448}, {384, kThree}}));
  return out.concat("cat", {one, three, twice, pooled_branch(out, x, 192)}, 1);
}

// ---- U-Net

TensorId two_convolutions(ModelBuilder& out, const std::string& name, TensorId x, std::int64_t channels) {
  const auto scope = out.inside(name);
  for (const std::string which : {"1", "2"}) {
    const TensorId seen = out.convolution("conv" + which, x, channels, kThree, Bias::kWith);
    x = out.map("relu" + which, kRelu, {seen});
  }
  return x;
}

// Half the channels, twice the height and width.
TensorId up(ModelBuilder& out, const std::string& name, TensorId x) {
  const std::int64_t from = out.size(x, 1), to = from / 2;
  const TensorId weight = out.parameter(name + ".weight", {from, to, 2, 2});
  const TensorId bias = out.parameter(name + ".bias", {to});
  return out.add(name, "aten.conv_transpose2d.input", {x, weight, bias},
                 {out.sizes(x)[0], to, 2 * out.size(x, 2), 2 * out.size(x, 3)});
}

}  // namespace

Graph build(const ResNet& model) {
  expect_sizes("resnet", {model.image, model.classes});
  const auto* const shape =
      std::find_if(kResNets.begin(), kResNets.end(), [&](const auto& s) { return s.depth == model.depth; });
  if (shape == kResNets.end()) {
    throw InputError("resnet: depth is " + std::to_string(model.depth) + "; expected 18, 34, 50, 101 or 152");
  }
  ModelBuilder out("resnet-" + std::to_string(model.depth), kAnyBatch);
  const SizeExpr batch = SizeExpr::batch();
  const TensorId image = out.input("image", {batch, 3, model.image, model.image});
  const TensorId label = out.input("label", {batch}, DType::kI64);
  TensorId x = out.conv_norm_relu("stem", image, 64, ModelBuilder::square(7, 2));
  x = out.pool("stem.pool", kMaxPool, x, ModelBuilder::square(3, 2));
  for (std::int64_t stage = 0; stage < 4; ++stage) {
    for (std::int64_t block = 0; block < shape->blocks[static_cast<std::size_t>(stage)]; ++block) {
      out.enter("stages." + std::to_string(stage) + "." + std::to_string(block));
      x = residual_block(out, x, std::int64_t{64} << stage, stage > 0 && block == 0 ? 2 : 1,
                         shape->expansion);
    }
  }
  out.enter("head");
  const TensorId logits = out.linear("classes", out.global_pool("pool", x), model.classes);
  return out.finish(out.cross_entropy("loss", logits, label));
}

Graph build(const InceptionV3& model) {
  expect_sizes("inception-v3", {model.image, model.classes});
  ModelBuilder out("inception-v3", kAnyBatch);
  const SizeExpr batch = SizeExpr::batch();
  const TensorId label = out.input("label", {batch}, DType::kI64);
  TensorId x = out.input("image", {batch, 3, model.image, model.image});
  x = row_of(out, "stem", x, {{32, kHalving}, {32, {.kernel = {3, 3}}}, {64, kThree}});
  x = out.pool("stem.pool", kMaxPool, x, kHalving);
  x = row_of(out, "stem2", x, {{80}, {192, {.kernel = {3, 3}}}});
  x = out.pool("stem2.pool", kMaxPool, x, kHalving);
  std::int64_t number = 0;
  const auto block = [&](const auto& make) {
    out.enter("blocks." + std::to_string(number++));
    x = make();
  };
  for (const std::int64_t pooled : {32, 64, 64}) block([&] { return inception_a(out, x, pooled); });
  block([&] { return inception_b(out, x); });
  for (const std::int64_t c : {128, 160, 160, 192}) block([&] { return inception_c(out, x, c); });
  std::optional<TensorId> halfway;
  if (model.auxiliary == InceptionV3::Auxiliary::kWith) {
    out.enter("auxiliary");
    const TensorId pooled = out.pool("average", kAveragePool, x, {.kernel = {5, 5}, .stride = 3});
    const TensorId seen = row_of(out, "row", pooled, {{128}, {768, {.kernel = {5, 5}}}});
    const TensorId logits = out.linear("classes", out.global_pool("pool", seen), model.classes);
    halfway = out.map("weighted", "aten.mul.Scalar", {out.cross_entropy("loss", logits, label)});
  }
  block([&] { return inception_d(out, x); });
  for (int e = 0; e < 2; ++e) block([&] { return inception_e(out, x); });
  out.enter("head");
  const TensorId dropped = out.random("dropout", "aten.dropout.default", out.global_pool("pool", x));
  const TensorId loss = out.cross_entropy("loss", out.linear("classes", dropped, model.classes), label);
  return out.finish(halfway ? out.map("sum", "aten.add.Tensor", {loss, *halfway}) : loss);
}

Graph build(const UNet& model) {
  expect_sizes("u-net", {model.width, model.levels, model.image, model.channels, model.classes});
  if (model.levels > 20 || model.image % (std::int64_t{1} << model.levels) != 0) {
    throw InputError("u-net: an image of " + std::to_string(model.image) + " cannot be halved " +
                     std::to_string(model.levels) + " times; expected a multiple of 2^levels");
  }
  ModelBuilder out("u-net", kAnyBatch);
  const SizeExpr batch = SizeExpr::batch();
  const TensorId labels = out.input("labels", {batch, model.image, model.image}, DType::kI64);
  TensorId x = out.input("image", {batch, model.channels, model.image, model.image});
  std::vector<TensorId> skips;
  for (std::int64_t l = 0; l < model.levels; ++l) {
    const std::string name = "down." + std::to_string(l);
    skips.push_back(two_convolutions(out, name, x, model.width << l));
    x = out.pool(name + ".pool", kMaxPool, skips.back(), {.kernel = {2, 2}, .stride = 2});
  }
  x = two_convolutions(out, "bottom", x, model.width << model.levels);
  for (std::int64_t l = model.levels - 1; l >= 0; --l) {
    const std::string name = "up." + std::to_string(l);
    const TensorId wide = up(out, name + ".wide", x);
    x = two_convolutions(out, name, out.concat(name + ".cat", {skips[static_cast<std::size_t>(l)], wide}, 1),
                         model.width << l);
  }
  const TensorId logits = out.convolution("classes", x, model.classes, {}, Bias::kWith);
  return out.finish(out.add("loss", "aten.cross_entropy_loss.default", {logits, labels}, {}));
}

Graph build(const WaveNet& model) {
  expect_sizes("wavenet",
               {model.stacks, model.layers, model.channels, model.skip, model.classes, model.length});
  if (model.layers % model.stacks != 0) {
    throw InputError("wavenet: " + std::to_string(model.stacks) + " stacks do not divide the " +
                     std::to_string(model.layers) + " layers");
  }
  const std::int64_t in_stack = model.layers / model.stacks;
  if (in_stack > 30)
    throw InputError("wavenet: a stack has at most 30 layers, whose last looks back 2^29 steps");
  ModelBuilder out("wavenet", kAnyBatch);
  const SizeExpr batch = SizeExpr::batch();
  const ModelBuilder::Sizes channels{batch, model.channels, model.length};
  const TensorId sound = out.input("sound", {batch, model.length}, DType::kI64);
  const TensorId labels = out.input("labels", {batch, model.length}, DType::kI64);
  const TensorId rows = out.embedding("embedding", sound, model.classes, model.channels);
  TensorId x = out.view("channels", "aten.transpose.int", rows, channels);
  std::optional<TensorId> read;
  for (std::int64_t l = 0; l < model.layers; ++l) {
    out.enter("stacks." + std::to_string(l / in_stack) + "." + std::to_string(l % in_stack));
    const std::int64_t dilation = std::int64_t{1} << (l % in_stack);
    const Window taps{.kernel = {2, 1}, .dilation = dilation};
    const TensorId padded = out.add("padded", "aten.constant_pad_nd.default", {x},
                                    {batch, model.channels, model.length + dilation});
    const TensorId filter = out.convolution("filter", padded, model.channels, taps, Bias::kWith);
    const TensorId gate = out.convolution("gate", padded, model.channels, taps, Bias::kWith);
    const TensorId active = out.map("tanh", "aten.tanh.default", {filter});
    const TensorId open = out.map("sigmoid", "aten.sigmoid.default", {gate});
    const TensorId gated = out.map("gated", "aten.mul.Tensor", {active, open});
    const TensorId skip = out.convolution("skip", gated, model.skip, {}, Bias::kWith);
    read = read ? out.map("skips", "aten.add.Tensor", {*read, skip}) : skip;
    if (l + 1 == model.layers) break;  // nobody would read what it sends on
    x = out.map("sum", "aten.add.Tensor", {out.convolution("on", gated, model.channels, {}, Bias::kWith), x});
  }
  out.enter("head");
  const TensorId first = out.convolution("1", out.map("relu1", kRelu, {*read}), model.skip, {}, Bias::kWith);
  const TensorId logits =
      out.convolution("2", out.map("relu2", kRelu, {first}), model.classes, {}, Bias::kWith);
  return out.finish(out.add("loss", "aten.cross_entropy_loss.default", {logits, labels}, {}));
}

}  // namespace espalier
