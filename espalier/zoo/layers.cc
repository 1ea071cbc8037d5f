// The layers of model_builder.h, written with its operators.

#include <utility>

#include "espalier/base/check.h"
#include "espalier/zoo/model_builder.h"

namespace espalier {

// ---- Of rows

TensorId ModelBuilder::linear(const std::string& name, TensorId x, std::int64_t to, Bias bias) {
  std::vector<TensorId> inputs{x, parameter(full_name(name) + ".weight", {to, size(x, -1)})};
  if (bias == Bias::kWith) inputs.push_back(parameter(full_name(name) + ".bias", {to}));
  Sizes out = sizes(x);
  out.back() = to;
  return add(name, "aten.linear.default", std::move(inputs), std::move(out));
}

TensorId ModelBuilder::layer_norm(const std::string& name, TensorId x) {
  const std::int64_t width = size(x, -1);
  const TensorId weight = parameter(full_name(name) + ".weight", {width});
  const TensorId bias = parameter(full_name(name) + ".bias", {width});
  return map(name, "aten.layer_norm.default", {x, weight, bias});
}

TensorId ModelBuilder::rms_norm(const std::string& name, TensorId x) {
  const TensorId weight = parameter(full_name(name) + ".weight", {size(x, -1)});
  return map(name, "aten.rms_norm.default", {x, weight});
}

TensorId ModelBuilder::embedding(const std::string& name, TensorId indices, std::int64_t rows,
                                 std::int64_t width) {
  return look_up(name, parameter(full_name(name) + ".weight", {rows, width}), indices);
}

TensorId ModelBuilder::position_embedding(const std::string& name, std::int64_t positions, std::int64_t rows,
                                          std::int64_t width) {
  const TensorId places = generate(name + "_places", "aten.arange.default", {positions}, DType::kI64);
  return embedding(name, places, rows, width);
}

TensorId ModelBuilder::feed_forward(const std::string& name, TensorId x, std::int64_t inner,
                                    std::string_view activation, Bias bias) {
  const std::int64_t width = size(x, -1);
  const auto scope = inside(name);
  const TensorId active = map("act", activation, {linear("up", x, inner, bias)});
  return linear("down", active, width, bias);
}

// ---- Attention

TensorId ModelBuilder::split_heads(const std::string& name, TensorId x, std::int64_t heads) {
  const SizeExpr samples = sizes(x)[0];
  const std::int64_t positions = size(x, 1), width = size(x, 2) / heads;
  const TensorId split = view(name + "_split", "aten.view.default", x, {samples, positions, heads, width});
  return view(name + "_heads", "aten.transpose.int", split, {samples, heads, positions, width});
}

TensorId ModelBuilder::attend(const std::string& name, std::vector<TensorId> operands) {
  const SizeExpr samples = sizes(operands[0])[0];
  const std::int64_t heads = size(operands[0], 1), positions = size(operands[0], 2);
  const std::int64_t width = size(operands[0], 3);
  const TensorId attended = map(name, "aten.scaled_dot_product_attention.default", std::move(operands));
  const TensorId turned =
      view(name + "_turned", "aten.transpose.int", attended, {samples, positions, heads, width});
  return add(name + "_merged", "aten.reshape.default", {turned}, {samples, positions, heads * width});
}

TensorId ModelBuilder::attention(const std::string& name, TensorId x, TensorId memory,
                                 const Attention& sizes) {
  const std::int64_t width = size(x, -1);
  const std::int64_t head = sizes.head_width > 0 ? sizes.head_width : width / sizes.heads;
  const std::int64_t shared = sizes.key_value_heads > 0 ? sizes.key_value_heads : sizes.heads;
  const auto scope = inside(name);
  const auto turned = [&](const std::string& which, TensorId heads) {
    return sizes.rotary ? rotate(which, heads, *sizes.rotary) : heads;
  };
  const TensorId q =
      turned("q", split_heads("q", linear("q", x, sizes.heads * head, sizes.bias), sizes.heads));
  const TensorId k =
      turned("k", split_heads("k", linear("k", memory, shared * head, sizes.key_bias), shared));
  const TensorId v = split_heads("v", linear("v", memory, shared * head, sizes.bias), shared);
  std::vector<TensorId> operands{q, k, v};
  if (sizes.mask) operands.push_back(*sizes.mask);
  return linear("out", attend("attention", std::move(operands)), width, sizes.bias);
}

TensorId ModelBuilder::pre_norm_layer(TensorId x, std::int64_t feed_forward, std::string_view activation,
                                      const Attention& sizes) {
  const TensorId normed = layer_norm("norm_1", x);
  x = map("attn_sum", "aten.add.Tensor", {x, attention("attn", normed, normed, sizes)});
  const TensorId inner = this->feed_forward("mlp", layer_norm("norm_2", x), feed_forward, activation);
  return map("sum", "aten.add.Tensor", {x, inner});
}

// cos and sin of position · frequency, where half of a head's numbers have a frequency each (Su et al., arXiv
// 2104.09864), as the transformers package computes them: an outer product, twice side by side.
ModelBuilder::Rotary ModelBuilder::rotary(const std::string& name, std::int64_t positions,
                                          std::int64_t head_width) {
  const auto scope = inside(name);
  const std::int64_t half = head_width / 2;
  const TensorId frequencies = buffer(full_name("frequencies"), {half});
  const TensorId column = derive("column", "aten.view.default", {frequencies}, {1, half, 1}, Memory::kView);
  const TensorId places = generate("places", "aten.arange.default", {1, 1, positions});
  const TensorId product = derive("product", "aten.matmul.default", {column, places}, {1, half, positions});
  const TensorId angles =
      derive("angles", "aten.transpose.int", {product}, {1, positions, half}, Memory::kView);
  const Sizes both{1, positions, head_width};
  const TensorId twice = derive("twice", "aten.cat.default", {angles, angles}, both);
  const TensorId cosine = derive("cos", "aten.cos.default", {twice}, both);
  const TensorId sine = derive("sin", "aten.sin.default", {twice}, both);
  const Sizes row{1, 1, positions, head_width};
  return {derive("cos_row", "aten.unsqueeze.default", {cosine}, row, Memory::kView),
          derive("sin_row", "aten.unsqueeze.default", {sine}, row, Memory::kView)};
}

// x · cos + (−second half, first half) · sin
TensorId ModelBuilder::rotate(const std::string& name, TensorId x, const Rotary& by) {
  Sizes half = sizes(x);
  half.back() = size(x, -1) / 2;
  const TensorId kept = map(name + "_cos", "aten.mul.Tensor", {x, by.cosine});
  const TensorId first = view(name + "_first", "aten.slice.Tensor", x, half);
  const TensorId second = view(name + "_second", "aten.slice.Tensor", x, half);
  const TensorId negative = map(name + "_negative", "aten.neg.default", {second});
  const TensorId swapped = concat(name + "_swapped", {negative, first}, 3);
  const TensorId moved = map(name + "_sin", "aten.mul.Tensor", {swapped, by.sine});
  return map(name + "_rotated", "aten.add.Tensor", {kept, moved});
}

// ---- Of images and signals

ModelBuilder::Window ModelBuilder::square(std::int64_t kernel, std::int64_t stride) {
  return {.kernel = {kernel, kernel}, .stride = stride, .padding = {kernel / 2, kernel / 2}};
}

namespace {

// What a window makes of places whose sizes do not depend on the batch.
ModelBuilder::Sizes places_after(const ModelBuilder::Sizes& x, const ModelBuilder::Window& window,
                                 const std::string& name) {
  ModelBuilder::Sizes out = x;
  for (std::size_t i = 2; i < x.size(); ++i) {
    const std::int64_t reach = window.dilation * (window.kernel[i - 2] - 1) + 1;
    const std::int64_t padded = *x[i].constant() + 2 * window.padding[i - 2];
    if (padded < reach) {
      throw InputError(name + ": a window of " + std::to_string(reach) + " does not fit into " +
                       std::to_string(padded) + "; the input is too small for this model");
    }
    out[i] = (padded - reach) / window.stride + 1;
  }
  return out;
}

}  // namespace

TensorId ModelBuilder::convolution(const std::string& name, TensorId x, std::int64_t channels,
                                   const Window& window, Bias bias, std::int64_t groups) {
  Sizes out = places_after(sizes(x), window, full_name(name));
  out[1] = channels;
  std::vector<std::int64_t> weight{channels, size(x, 1) / groups};
  for (std::size_t i = 2; i < out.size(); ++i) weight.push_back(window.kernel[i - 2]);
  std::vector<TensorId> inputs{x, parameter(full_name(name) + ".weight", std::move(weight))};
  if (bias == Bias::kWith) inputs.push_back(parameter(full_name(name) + ".bias", {channels}));
  const char* const target = out.size() == 3 ? "aten.conv1d.default" : "aten.conv2d.default";
  return add(name, target, std::move(inputs), std::move(out));
}

TensorId ModelBuilder::pool(const std::string& name, std::string_view target, TensorId x,
                            const Window& window) {
  return add(name, target, {x}, places_after(sizes(x), window, full_name(name)));
}

TensorId ModelBuilder::conv_norm(const std::string& name, TensorId x, std::int64_t channels,
                                 const Window& window, std::int64_t groups) {
  const auto scope = inside(name);
  return batch_norm("bn", convolution("conv", x, channels, window, Bias::kWithout, groups));
}

TensorId ModelBuilder::conv_norm_relu(const std::string& name, TensorId x, std::int64_t channels,
                                      const Window& window) {
  const TensorId normed = conv_norm(name, x, channels, window);
  return map(name + ".relu", "aten.relu.default", {normed});
}

TensorId ModelBuilder::global_pool(const std::string& name, TensorId x) {
  Sizes one = sizes(x);
  for (std::size_t i = 2; i < one.size(); ++i) one[i] = 1;
  const TensorId mean = add(name, "aten.adaptive_avg_pool2d.default", {x}, std::move(one));
  return view(name + "_flat", "aten.flatten.using_ints", mean, {sizes(x)[0], sizes(x)[1]});
}

// ---- Loss

TensorId ModelBuilder::cross_entropy(const std::string& name, TensorId logits, TensorId labels) {
  const std::int64_t classes = size(logits, -1);
  if (sizes(logits).size() > 2) {
    SizeExpr rows = sizes(labels)[0];
    for (std::size_t i = 1; i < sizes(labels).size(); ++i) rows = sizes(labels)[i] * rows;
    logits = view(name + "_rows", "aten.view.default", logits, {rows, classes});
    labels = view(name + "_labels", "aten.view.default", labels, {rows});
  }
  return add(name, "aten.cross_entropy_loss.default", {logits, labels}, {});
}

}  // namespace espalier
