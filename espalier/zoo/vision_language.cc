#include "espalier/zoo/vision_language.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/zoo/model_builder.h"

namespace espalier {
namespace {

using Bias = ModelBuilder::Bias;
using Memory = ModelBuilder::Memory;

void expect_tower(const std::string& model, const ImageTower& tower) {
  expect_sizes(model,
               {tower.image, tower.patch, tower.layers, tower.hidden, tower.heads, tower.feed_forward});
  expect_heads(model, tower.heads, tower.hidden);
  if (tower.image % tower.patch != 0) {
    throw InputError(model + ": patches of " + std::to_string(tower.patch) +
                     " pixels do not divide an image of " + std::to_string(tower.image));
  }
}

enum class TowerStart : std::uint8_t { kVit, kClip };  // patches with a bias; without, and a norm at once

// A class token and the patches, samples × (patches + 1) × hidden, behind all layers.
TensorId image_tower(ModelBuilder& out, TensorId image, const ImageTower& tower, TowerStart start) {
  const SizeExpr batch = SizeExpr::batch();
  const std::int64_t side = tower.image / tower.patch, patches = side * side, hidden = tower.hidden;
  const ModelBuilder::Window window{.kernel = {tower.patch, tower.patch}, .stride = tower.patch};
  const TensorId mosaic = out.convolution("patches", image, hidden, window,
                                          start == TowerStart::kVit ? Bias::kWith : Bias::kWithout);
  const TensorId flat = out.view("flat", "aten.flatten.using_ints", mosaic, {batch, hidden, patches});
  const TensorId rows = out.view("rows", "aten.transpose.int", flat, {batch, patches, hidden});
  const TensorId token = out.parameter(out.full_name("class_token"), {1, 1, hidden});
  const TensorId tokens = out.view("tokens", "aten.expand.default", token, {batch, 1, hidden});
  const TensorId places = out.parameter(out.full_name("positions"), {1, patches + 1, hidden});
  TensorId x = out.map("embedded", "aten.add.Tensor", {out.concat("all", {tokens, rows}, 1), places});
  if (start == TowerStart::kClip) x = out.layer_norm("pre_norm", x);
  for (std::int64_t l = 0; l < tower.layers; ++l) {
    const auto scope = out.inside("layers", l);
    x = out.pre_norm_layer(x, tower.feed_forward, "aten.gelu.default", {.heads = tower.heads});
  }
  return x;
}

TensorId first_row(ModelBuilder& out, TensorId x) {
  return out.view("class", "aten.select.int", x, {out.sizes(x)[0], out.size(x, -1)});
}

// ---- CLIP

// samples × hidden: the row of a caption's last word, which has the largest number.
TensorId text_tower(ModelBuilder& out, TensorId words, const Clip::Text& text) {
  const SizeExpr batch = SizeExpr::batch();
  const TensorId places = out.position_embedding("positions", text.positions, text.positions, text.hidden);
  const TensorId word = out.embedding("words", words, text.vocabulary, text.hidden);
  TensorId x = out.map("embedded", "aten.add.Tensor", {word, places});
  for (std::int64_t l = 0; l < text.layers; ++l) {
    const auto scope = out.inside("layers", l);
    x = out.pre_norm_layer(x, text.feed_forward, "aten.gelu.default", {.heads = text.heads});
  }
  x = out.layer_norm("norm", x);
  const TensorId last = out.add("last", "aten.argmax.default", {words}, {batch});
  const TensorId rows = out.generate("rows", "aten.arange.default", {batch}, DType::kI64);
  return out.add("picked", "aten.index.Tensor", {x, rows, last}, {batch, text.hidden});
}

// The projection to the common space, of length 1.
TensorId projected(ModelBuilder& out, TensorId x, std::int64_t embedding) {
  const TensorId projection = out.linear("projection", x, embedding, Bias::kWithout);
  const TensorId length =
      out.add("length", "aten.linalg_vector_norm.default", {projection}, {out.sizes(x)[0], 1});
  return out.map("normalized", "aten.div.Tensor", {projection, length});
}

// ---- ViLBERT

struct Stream {
  std::string name;
  std::int64_t heads, feed_forward;
};

// A norm behind the sum of what goes in and what a part made of it.
TensorId post_norm(ModelBuilder& out, const std::string& name, TensorId x, TensorId made) {
  return out.layer_norm(name + "_norm", out.map(name + "_sum", "aten.add.Tensor", {made, x}));
}

TensorId post_norm_feed_forward(ModelBuilder& out, TensorId x, std::int64_t inner) {
  return post_norm(out, "mlp", x, out.feed_forward("mlp", x, inner, "aten.gelu.default"));
}

TensorId stream_layer(ModelBuilder& out, const Stream& stream, std::int64_t number, TensorId x) {
  const auto scope = out.inside(stream.name + ".layers", number);
  x = post_norm(out, "attn", x, out.attention("attn", x, x, {.heads = stream.heads}));
  return post_norm_feed_forward(out, x, stream.feed_forward);
}

// Each stream's queries over the other's keys and values.
std::pair<TensorId, TensorId> co_attention_layer(ModelBuilder& out, const std::pair<Stream, Stream>& streams,
                                                 std::int64_t number, TensorId words, TensorId regions,
                                                 const CoAttention& model) {
  const ModelBuilder::Attention sizes{.heads = model.region_heads,
                                      .head_width = model.region_hidden / model.region_heads};
  const auto half = [&](const Stream& own, TensorId x, TensorId other) {
    const auto scope = out.inside(own.name + ".connections", number);
    x = post_norm(out, "attn", x, out.attention("attn", x, other, sizes));
    return post_norm_feed_forward(out, x, own.feed_forward);
  };
  const TensorId asked = half(streams.first, words, regions);
  return {asked, half(streams.second, regions, words)};
}

TensorId embedded_words(ModelBuilder& out, TensorId words, TensorId table, const CoAttention& model) {
  const auto scope = out.inside("words");
  const TensorId places = out.position_embedding("positions", model.positions, model.positions, model.hidden);
  const TensorId word = out.look_up("embedding", table, words);
  return out.layer_norm("norm", out.map("embedded", "aten.add.Tensor", {word, places}));
}

TensorId embedded_regions(ModelBuilder& out, TensorId features, TensorId boxes, const CoAttention& model) {
  const auto scope = out.inside("regions");
  const TensorId seen = out.linear("features", features, model.region_hidden);
  const TensorId where = out.linear("boxes", boxes, model.region_hidden);
  return out.layer_norm("norm", out.map("embedded", "aten.add.Tensor", {seen, where}));
}

// What is masked in either stream, and whether words and image belong together.
TensorId co_attention_loss(ModelBuilder& out, TensorId words, TensorId regions, TensorId table,
                           const CoAttention& model) {
  const SizeExpr batch = SizeExpr::batch();
  const TensorId labels = out.input("labels", {batch, model.positions}, DType::kI64);
  const TensorId classes = out.input("classes", {batch, model.regions}, DType::kI64);
  const TensorId aligned = out.input("aligned", {batch}, DType::kI64);
  const auto pooled = [&](TensorId x) {
    return out.map("pooled", "aten.relu.default",
                   {out.linear("pooler", first_row(out, x), model.region_hidden)});
  };
  const auto turned = [&](TensorId x) {
    const TensorId dense = out.linear("dense", x, out.size(x, -1));
    return out.layer_norm("norm", out.map("gelu", "aten.gelu.default", {dense}));
  };
  out.enter("words.head");
  const TensorId of_words = pooled(words);
  const TensorId bias = out.parameter("words.head.logits.bias", {model.vocabulary});
  const TensorId word_logits = out.add("logits", "aten.linear.default", {turned(words), table, bias},
                                       {batch, model.positions, model.vocabulary});
  const TensorId word_loss = out.cross_entropy("loss", word_logits, labels);
  out.enter("regions.head");
  const TensorId of_regions = pooled(regions);
  const TensorId region_logits = out.linear("logits", turned(regions), model.region_classes);
  const TensorId region_loss = out.cross_entropy("loss", region_logits, classes);
  out.enter("alignment");
  const TensorId both = out.map("both", "aten.mul.Tensor", {of_words, of_regions});
  const TensorId alignment = out.cross_entropy("loss", out.linear("logits", both, 2), aligned);
  const TensorId masked = out.map("masked", "aten.add.Tensor", {word_loss, region_loss});
  return out.map("sum", "aten.add.Tensor", {masked, alignment});
}

}  // namespace

Graph build(const VisionTransformer& model) {
  expect_tower("vit", model.tower);
  expect_sizes("vit", {model.classes});
  ModelBuilder out("vit", kAnyBatch);
  const SizeExpr batch = SizeExpr::batch();
  const TensorId image = out.input("image", {batch, 3, model.tower.image, model.tower.image});
  const TensorId label = out.input("label", {batch}, DType::kI64);
  TensorId x = image_tower(out, image, model.tower, TowerStart::kVit);
  x = first_row(out, out.layer_norm("norm", x));
  return out.finish(out.cross_entropy("loss", out.linear("head", x, model.classes), label));
}

Graph build(const Clip& model) {
  expect_tower("clip", model.image);
  expect_sizes("clip", {model.text.layers, model.text.hidden, model.text.heads, model.text.feed_forward,
                        model.text.positions, model.text.vocabulary, model.embedding});
  expect_heads("clip", model.text.heads, model.text.hidden);
  ModelBuilder out("clip", kAnyBatch);
  const SizeExpr batch = SizeExpr::batch();
  const TensorId image = out.input("image", {batch, 3, model.image.image, model.image.image});
  const TensorId words = out.input("words", {batch, model.text.positions}, DType::kI64);

  out.enter("image");
  const TensorId seen = image_tower(out, image, model.image, TowerStart::kClip);
  const TensorId picture = projected(out, out.layer_norm("norm", first_row(out, seen)), model.embedding);
  out.enter("text");
  const TensorId caption = projected(out, text_tower(out, words, model.text), model.embedding);

  out.enter("similarity");
  const ModelBuilder::Sizes square{batch, batch};
  const TensorId columns = out.view("columns", "aten.t.default", caption, {model.embedding, batch});
  const TensorId cosines = out.mix("cosines", "aten.matmul.default", {picture, columns}, square);
  const TensorId logarithm = out.parameter("temperature", {});
  const TensorId temperature = out.map("temperature", "aten.exp.default", {logarithm});
  const TensorId logits = out.map("logits", "aten.mul.Tensor", {cosines, temperature});
  const TensorId turned = out.view("turned", "aten.t.default", logits, square);
  const TensorId own = out.generate("own", "aten.arange.default", {batch}, DType::kI64);
  const TensorId of_images = out.mix("image_loss", "aten.cross_entropy_loss.default", {logits, own}, {});
  const TensorId of_texts = out.mix("text_loss", "aten.cross_entropy_loss.default", {turned, own}, {});
  const TensorId both = out.map("both", "aten.add.Tensor", {of_images, of_texts});
  return out.finish(out.map("loss", "aten.div.Scalar", {both}));
}

Graph build(const VisionLanguage& model) {
  expect_tower("vision-language", model.encoder);
  expect_sizes("vision-language", {model.encoders, model.language.positions});
  ModelBuilder out("vision-language", kAnyBatch);
  const SizeExpr batch = SizeExpr::batch();
  const std::int64_t words_count = model.language.positions, hidden = model.language.hidden;
  const std::int64_t side = model.encoder.image / model.encoder.patch, patches = side * side;
  const TensorId words = out.input("words", {batch, words_count}, DType::kI64);
  const TensorId labels = out.input("labels", {batch, words_count}, DType::kI64);
  std::vector<TensorId> rows;
  for (std::int64_t e = 0; e < model.encoders; ++e) {
    const std::string name = "encoders." + std::to_string(e);
    const TensorId image =
        out.input("images." + std::to_string(e), {batch, 3, model.encoder.image, model.encoder.image});
    out.enter(name);
    const TensorId seen = out.layer_norm("norm", image_tower(out, image, model.encoder, TowerStart::kClip));
    const TensorId kept =
        out.view("without_class", "aten.slice.Tensor", seen, {batch, patches, model.encoder.hidden});
    out.enter(name + ".projector");
    const TensorId active = out.map("gelu", "aten.gelu.default", {out.linear("up", kept, hidden)});
    rows.push_back(out.linear("across", active, hidden));
  }
  out.enter("language");
  rows.push_back(out.embedding("embedding", words, model.language.vocabulary, hidden));
  const TensorId x = llama_decoder(out, out.concat("all", rows, 1), model.language);
  const TensorId own = out.view("of_words", "aten.slice.Tensor", x, {batch, words_count, hidden});
  out.enter("head");
  const TensorId logits = out.linear("logits", own, model.language.vocabulary, Bias::kWithout);
  return out.finish(out.cross_entropy("loss", logits, labels));
}

Graph build(const CoAttention& model) {
  expect_sizes("co-attention", {model.word_layers, model.region_layers, model.connections, model.hidden,
                                model.heads, model.feed_forward, model.region_hidden, model.region_heads,
                                model.region_feed_forward, model.positions, model.regions,
                                model.region_features, model.region_classes, model.vocabulary});
  expect_heads("co-attention", model.heads, model.hidden);
  expect_heads("co-attention", model.region_heads, model.region_hidden);
  if (model.connections > std::min(model.word_layers, model.region_layers)) {
    throw InputError("co-attention: a layer of either stream follows each connection, so there are at most " +
                     std::to_string(std::min(model.word_layers, model.region_layers)) + " connections");
  }
  ModelBuilder out("co-attention", kAnyBatch);
  const SizeExpr batch = SizeExpr::batch();
  const std::pair<Stream, Stream> streams{{"words", model.heads, model.feed_forward},
                                          {"regions", model.region_heads, model.region_feed_forward}};
  const TensorId table = out.parameter("words.embedding.weight", {model.vocabulary, model.hidden});
  const TensorId ids = out.input("words", {batch, model.positions}, DType::kI64);
  const TensorId features = out.input("features", {batch, model.regions, model.region_features});
  const TensorId boxes = out.input("boxes", {batch, model.regions, 5});
  TensorId words = embedded_words(out, ids, table, model);
  TensorId regions = embedded_regions(out, features, boxes, model);
  std::int64_t word_layer = 0, region_layer = 0;
  while (word_layer < model.word_layers - model.connections)
    words = stream_layer(out, streams.first, word_layer++, words);
  while (region_layer < model.region_layers - model.connections)
    regions = stream_layer(out, streams.second, region_layer++, regions);
  for (std::int64_t c = 0; c < model.connections; ++c) {
    std::tie(words, regions) = co_attention_layer(out, streams, c, words, regions, model);
    words = stream_layer(out, streams.first, word_layer++, words);
    regions = stream_layer(out, streams.second, region_layer++, regions);
  }
  return out.finish(co_attention_loss(out, words, regions, table, model));
}

}  // namespace espalier
