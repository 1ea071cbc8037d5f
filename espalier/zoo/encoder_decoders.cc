#include "espalier/zoo/encoder_decoders.h"

#include <optional>
#include <string>

#include "espalier/zoo/model_builder.h"

namespace espalier {
namespace {

using Bias = ModelBuilder::Bias;

// ---- T5

class T5Writer {
 public:
  explicit T5Writer(const T5& model) : model_(model), out_("t5", kAnyBatch) {}

  Graph write() {
    const TensorId source = out_.input("source", {batch_, model_.source}, DType::kI64);
    const TensorId target = out_.input("target", {batch_, model_.target}, DType::kI64);
    const TensorId labels = out_.input("labels", {batch_, model_.target}, DType::kI64);
    const TensorId table = out_.parameter("shared.weight", {model_.vocabulary, model_.hidden});

    out_.enter("encoder");
    TensorId memory = out_.look_up("words", table, source);
    const TensorId near = relative_bias(model_.source);
    for (std::int64_t l = 0; l < model_.layers; ++l) {
      const auto scope = out_.inside("layers", l);
      memory = feed_forward(attention("attn", memory, std::nullopt, near));
    }
    memory = out_.rms_norm("norm", memory);

    out_.enter("decoder");
    TensorId x = out_.look_up("words", table, target);
    const TensorId past = only_past(relative_bias(model_.target));
    for (std::int64_t l = 0; l < model_.layers; ++l) {
      const auto scope = out_.inside("layers", l);
      x = attention("attn", x, std::nullopt, past);
      x = feed_forward(attention("cross", x, memory, std::nullopt));
    }
    x = out_.rms_norm("norm", x);
    out_.enter("head");
    const TensorId scaled = out_.map("scaled", "aten.mul.Scalar", {x});
    const TensorId logits = out_.add("logits", "aten.linear.default", {scaled, table},
                                     {batch_, model_.target, model_.vocabulary});
    return out_.finish(out_.cross_entropy("loss", logits, labels));
  }

 private:
  // A number for each head and distance, 1 × heads × positions × positions; far distances share theirs.
  TensorId relative_bias(std::int64_t positions) {
    const auto scope = out_.inside("distances");
    const TensorId bounds = out_.buffer(out_.full_name("bounds"), {model_.buckets - 1}, DType::kI64);
    const TensorId rows = out_.generate("rows", "aten.arange.start_step", {positions, 1}, DType::kI64);
    const TensorId columns = out_.generate("columns", "aten.arange.default", {positions}, DType::kI64);
    const ModelBuilder::Sizes square{positions, positions};
    const TensorId distances = out_.derive("distances", "aten.sub.Tensor", {rows, columns}, square);
    const TensorId bucket = out_.derive("bucket", "aten.bucketize.Tensor", {distances, bounds}, square);
    const TensorId biases = out_.embedding("bias", bucket, model_.buckets, model_.heads);
    const TensorId turned =
        out_.view("turned", "aten.permute.default", biases, {model_.heads, positions, positions});
    return out_.view("mask", "aten.unsqueeze.default", turned, {1, model_.heads, positions, positions});
  }

  TensorId only_past(TensorId bias) {
    const ModelBuilder::Sizes square{model_.target, model_.target};
    const TensorId low = out_.generate("low", "aten.full.default", square);
    const TensorId future = out_.derive("future", "aten.triu.default", {low}, square);
    return out_.map("mask", "aten.add.Tensor", {bias, future});
  }

  // x + attention(norm(x)) over itself or over a memory.
  TensorId attention(const std::string& name, TensorId x, std::optional<TensorId> memory,
                     std::optional<TensorId> mask) {
    const TensorId normed = out_.rms_norm(name + "_norm", x);
    const TensorId attended = out_.attention(name, normed, memory.value_or(normed),
                                             {.heads = model_.heads,
                                              .head_width = model_.head_width,
                                              .bias = Bias::kWithout,
                                              .key_bias = Bias::kWithout,
                                              .mask = mask});
    return out_.map(name + "_sum", "aten.add.Tensor", {x, attended});
  }

  TensorId feed_forward(TensorId x) {
    const TensorId inner = out_.feed_forward("mlp", out_.rms_norm("mlp_norm", x), model_.feed_forward,
                                             "aten.relu.default", Bias::kWithout);
    return out_.map("sum", "aten.add.Tensor", {x, inner});
  }

  const T5& model_;
  ModelBuilder out_;
  const SizeExpr batch_ = SizeExpr::batch();
};

// ---- Whisper

// samples × positions × hidden from twice as many frames.
TensorId listen(ModelBuilder& out, TensorId frames, const Whisper& model) {
  const TensorId first =
      out.convolution("conv1", frames, model.hidden, {.kernel = {3, 1}, .padding = {1, 0}}, Bias::kWith);
  const TensorId active = out.map("gelu1", "aten.gelu.default", {first});
  const TensorId second = out.convolution("conv2", active, model.hidden,
                                          {.kernel = {3, 1}, .stride = 2, .padding = {1, 0}}, Bias::kWith);
  const TensorId heard = out.map("gelu2", "aten.gelu.default", {second});
  const ModelBuilder::Sizes rows{SizeExpr::batch(), model.source, model.hidden};
  const TensorId turned = out.view("turned", "aten.permute.default", heard, rows);
  const TensorId places = out.buffer(out.full_name("positions"), {model.source, model.hidden});
  return out.map("embedded", "aten.add.Tensor", {turned, places});
}

}  // namespace

Graph build(const T5& model) {
  expect_sizes("t5", {model.layers, model.hidden, model.heads, model.head_width, model.feed_forward,
                      model.source, model.target, model.vocabulary, model.buckets});
  return T5Writer(model).write();
}

Graph build(const Whisper& model) {
  expect_sizes("whisper", {model.layers, model.hidden, model.heads, model.feed_forward, model.mels,
                           model.source, model.target, model.vocabulary});
  expect_heads("whisper", model.heads, model.hidden);
  ModelBuilder out("whisper", kAnyBatch);
  const SizeExpr batch = SizeExpr::batch();
  const ModelBuilder::Attention sizes{.heads = model.heads, .key_bias = Bias::kWithout};
  const TensorId frames = out.input("frames", {batch, model.mels, 2 * model.source});
  const TensorId words = out.input("words", {batch, model.target}, DType::kI64);
  const TensorId labels = out.input("labels", {batch, model.target}, DType::kI64);

  out.enter("encoder");
  TensorId memory = listen(out, frames, model);
  for (std::int64_t l = 0; l < model.layers; ++l) {
    const auto scope = out.inside("layers", l);
    memory = out.pre_norm_layer(memory, model.feed_forward, "aten.gelu.default", sizes);
  }
  memory = out.layer_norm("norm", memory);

  out.enter("decoder");
  const TensorId table = out.parameter("decoder.words.weight", {model.vocabulary, model.hidden});
  const TensorId places = out.parameter("decoder.positions", {model.target, model.hidden});
  TensorId x = out.map("embedded", "aten.add.Tensor", {out.look_up("words", table, words), places});
  for (std::int64_t l = 0; l < model.layers; ++l) {
    const auto scope = out.inside("layers", l);
    const TensorId normed = out.layer_norm("self_norm", x);
    x = out.map("self_sum", "aten.add.Tensor", {x, out.attention("self", normed, normed, sizes)});
    const TensorId query = out.layer_norm("cross_norm", x);
    x = out.map("cross_sum", "aten.add.Tensor", {x, out.attention("cross", query, memory, sizes)});
    const TensorId inner =
        out.feed_forward("mlp", out.layer_norm("mlp_norm", x), model.feed_forward, "aten.gelu.default");
    x = out.map("sum", "aten.add.Tensor", {x, inner});
  }
  x = out.layer_norm("norm", x);
  out.enter("head");
  const TensorId logits =
      out.add("logits", "aten.linear.default", {x, table}, {batch, model.target, model.vocabulary});
  return out.finish(out.cross_entropy("loss", logits, labels));
}

}  // namespace espalier
