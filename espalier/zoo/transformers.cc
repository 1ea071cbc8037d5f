#include "espalier/zoo/transformers.h"

#include <string>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/zoo/model_builder.h"

namespace espalier {
namespace {

using Bias = ModelBuilder::Bias;
using Memory = ModelBuilder::Memory;

// ---- GPT

TensorId gpt_layer(ModelBuilder& out, TensorId x, std::int64_t heads) {
  const std::int64_t hidden = out.size(x, -1);
  ModelBuilder::Sizes third = out.sizes(x);
  const TensorId qkv = out.linear("attn.qkv", out.layer_norm("ln_1", x), 3 * hidden);
  const std::vector<TensorId> parts =
      out.add_several("attn.split", "aten.split.Tensor", {qkv}, 3, std::move(third), Memory::kView);
  const TensorId attended = out.attend("attn.attention", {out.split_heads("attn.q", parts[0], heads),
                                                          out.split_heads("attn.k", parts[1], heads),
                                                          out.split_heads("attn.v", parts[2], heads)});
  x = out.map("attn_sum", "aten.add.Tensor", {x, out.linear("attn.out", attended, hidden)});
  const TensorId inner = out.feed_forward("mlp", out.layer_norm("ln_2", x), 4 * hidden, "aten.gelu.default");
  return out.map("sum", "aten.add.Tensor", {x, inner});
}

// ---- BERT

TensorId bert_layer(ModelBuilder& out, TensorId x, const Bert& model) {
  const TensorId attended = out.attention("attention", x, x, {.heads = model.heads});
  x = out.layer_norm("attention_norm", out.map("attention_sum", "aten.add.Tensor", {attended, x}));
  const TensorId inner = out.feed_forward("mlp", x, model.feed_forward, "aten.gelu.default");
  return out.layer_norm("norm", out.map("sum", "aten.add.Tensor", {inner, x}));
}

// ---- Llama

TensorId gated_feed_forward(ModelBuilder& out, const std::string& name, TensorId x, std::int64_t inner) {
  const std::int64_t hidden = out.size(x, -1);
  const auto scope = out.inside(name);
  const TensorId gate = out.map("silu", "aten.silu.default", {out.linear("gate", x, inner, Bias::kWithout)});
  const TensorId gated =
      out.map("gated", "aten.mul.Tensor", {gate, out.linear("up", x, inner, Bias::kWithout)});
  return out.linear("down", gated, hidden, Bias::kWithout);
}

// The router's shares of experts × tokens; each expert gathers its tokens, and what all of them give is
// added where the tokens came from.
TensorId routed_feed_forward(ModelBuilder& out, const std::string& name, TensorId x, const Llama& model) {
  const auto scope = out.inside(name);
  const SizeExpr samples = out.sizes(x)[0];
  const std::int64_t positions = out.size(x, 1), experts = model.experts;
  const std::int64_t capacity = (positions * model.experts_per_token + experts - 1) / experts;
  const TensorId scores = out.linear("router", x, experts, Bias::kWithout);
  const TensorId shares = out.map("shares", "aten.softmax.int", {scores});
  const TensorId turned = out.view("turned", "aten.transpose.int", shares, {samples, experts, positions});
  const auto [gates, places] = out.top("chosen", turned, capacity);
  std::vector<TensorId> all;
  for (std::int64_t e = 0; e < experts; ++e) {
    const auto expert = out.inside("experts", e);
    const TensorId own = out.view("places", "aten.select.int", places, {samples, capacity});
    const TensorId rows = out.view("rows", "aten.unsqueeze.default", own, {samples, capacity, 1});
    const TensorId index = out.view("index", "aten.expand.default", rows, {samples, capacity, model.hidden});
    const TensorId tokens =
        out.add("tokens", "aten.gather.default", {x, index}, {samples, capacity, model.hidden});
    const TensorId given = gated_feed_forward(out, "mlp", tokens, model.feed_forward);
    const TensorId gate = out.view("gate", "aten.select.int", gates, {samples, capacity});
    const TensorId column = out.view("column", "aten.unsqueeze.default", gate, {samples, capacity, 1});
    all.push_back(out.map("weighted", "aten.mul.Tensor", {given, column}));
  }
  const std::int64_t taken = experts * capacity;
  const TensorId joined = out.concat("joined", all, 1);
  const TensorId flat = out.view("places", "aten.view.default", places, {samples, taken, 1});
  const TensorId index = out.view("index", "aten.expand.default", flat, {samples, taken, model.hidden});
  const TensorId zeros = out.generate("zeros", "aten.zeros.default", out.sizes(x));
  return out.add("combined", "aten.scatter_add.default", {zeros, index, joined}, out.sizes(x));
}

// ---- Transformer-XL

// Sines and cosines of the 2P distances, 2P × hidden.
TensorId relative_positions(ModelBuilder& out, const TransformerXl& model) {
  const auto scope = out.inside("distances");
  const std::int64_t reach = 2 * model.positions, half = model.hidden / 2;
  const TensorId frequencies = out.buffer(out.full_name("frequencies"), {half});
  const TensorId places = out.generate("places", "aten.arange.start_step", {reach, 1});
  const TensorId angles = out.derive("angles", "aten.mul.Tensor", {places, frequencies}, {reach, half});
  const TensorId sine = out.derive("sin", "aten.sin.default", {angles}, {reach, half});
  const TensorId cosine = out.derive("cos", "aten.cos.default", {angles}, {reach, half});
  return out.derive("table", "aten.cat.default", {sine, cosine}, {reach, model.hidden});
}

struct RelativeAttention {
  TensorId distances, u, v, mask;
};

// (q + v)·rᵀ holds in column j the distance j; the shift puts it under the key that is so far away: one more
// column, the rows read as if they were that much longer, the first left out.
TensorId shifted(ModelBuilder& out, TensorId scores) {
  const SizeExpr samples = out.sizes(scores)[0];
  const std::int64_t heads = out.size(scores, 1), rows = out.size(scores, 2), columns = out.size(scores, 3);
  const TensorId padded =
      out.add("padded", "aten.constant_pad_nd.default", {scores}, {samples, heads, rows, columns + 1});
  const TensorId longer =
      out.view("longer", "aten.view.default", padded, {samples, heads, columns + 1, rows});
  const TensorId rest = out.view("rest", "aten.slice.Tensor", longer, {samples, heads, columns, rows});
  return out.view("shifted", "aten.view.default", rest, out.sizes(scores));
}

TensorId relative_attention(ModelBuilder& out, TensorId x, TensorId memory, std::int64_t heads,
                            const RelativeAttention& by) {
  const auto scope = out.inside("attention");
  const SizeExpr samples = out.sizes(x)[0];
  const std::int64_t positions = out.size(x, 1), hidden = out.size(x, 2), head = hidden / heads;
  const std::int64_t reach = 2 * positions;
  const TensorId all = out.concat("all", {memory, x}, 1);
  const TensorId qkv = out.linear("qkv", all, 3 * hidden, Bias::kWithout);
  const std::vector<TensorId> parts =
      out.add_several("split", "aten.split.Tensor", {qkv}, 3, {samples, reach, hidden}, Memory::kView);
  const TensorId own = out.view("own", "aten.slice.Tensor", parts[0], out.sizes(x));
  const TensorId q = out.split_heads("q", own, heads);
  const TensorId k = out.split_heads("k", parts[1], heads);
  const TensorId v = out.split_heads("v", parts[2], heads);
  const TensorId r = out.linear("r", by.distances, hidden, Bias::kWithout);
  const TensorId r_split = out.view("r_split", "aten.view.default", r, {reach, heads, head});
  const TensorId r_columns = out.view("r_columns", "aten.permute.default", r_split, {heads, head, reach});
  const TensorId k_columns = out.view("k_columns", "aten.transpose.int", k, {samples, heads, head, reach});
  const ModelBuilder::Sizes scores{samples, heads, positions, reach};
  const TensorId content = out.add("content", "aten.matmul.default",
                                   {out.map("q_content", "aten.add.Tensor", {q, by.u}), k_columns}, scores);
  const TensorId distance = out.add("distance", "aten.matmul.default",
                                    {out.map("q_distance", "aten.add.Tensor", {q, by.v}), r_columns}, scores);
  const TensorId sum = out.map("scores", "aten.add.Tensor", {content, shifted(out, distance)});
  const TensorId scaled = out.map("scaled", "aten.mul.Scalar", {sum});
  const TensorId masked = out.map("masked", "aten.masked_fill.Scalar", {scaled, by.mask});
  const TensorId shares = out.map("shares", "aten.softmax.int", {masked});
  const TensorId read =
      out.add("read", "aten.matmul.default", {shares, v}, {samples, heads, positions, head});
  const TensorId turned = out.view("turned", "aten.transpose.int", read, {samples, positions, heads, head});
  const TensorId merged = out.add("merged", "aten.reshape.default", {turned}, out.sizes(x));
  return out.linear("out", merged, hidden, Bias::kWithout);
}

TensorId transformer_xl_layer(ModelBuilder& out, TensorId x, TensorId memory, const TransformerXl& model,
                              const RelativeAttention& by) {
  const TensorId attended = relative_attention(out, x, memory, model.heads, by);
  x = out.layer_norm("attention_norm", out.map("attention_sum", "aten.add.Tensor", {x, attended}));
  const TensorId inner = out.feed_forward("mlp", x, model.feed_forward, "aten.relu.default");
  return out.layer_norm("norm", out.map("sum", "aten.add.Tensor", {x, inner}));
}

}  // namespace

Graph build(const Gpt& model) {
  expect_sizes("gpt", {model.layers, model.hidden, model.heads, model.positions, model.vocabulary});
  expect_heads("gpt", model.heads, model.hidden);
  ModelBuilder out("gpt", kAnyBatch);
  const SizeExpr batch = SizeExpr::batch();
  const TensorId words = out.input("words", {batch, model.positions}, DType::kI64);
  const TensorId labels = out.input("labels", {batch, model.positions}, DType::kI64);
  const TensorId table = out.parameter("embedding.words.weight", {model.vocabulary, model.hidden});
  out.enter("embedding");
  const TensorId word = out.look_up("words", table, words);
  const TensorId place = out.position_embedding("positions", model.positions, model.positions, model.hidden);
  TensorId x = out.map("sum", "aten.add.Tensor", {word, place});
  for (std::int64_t l = 0; l < model.layers; ++l) {
    out.enter("layers." + std::to_string(l));
    x = gpt_layer(out, x, model.heads);
  }
  out.enter("head");
  const TensorId logits = out.add("logits", "aten.linear.default", {out.layer_norm("norm", x), table},
                                  {batch, model.positions, model.vocabulary});
  return out.finish(out.cross_entropy("loss", logits, labels));
}

Graph build(const Bert& model) {
  expect_sizes("bert", {model.layers, model.hidden, model.heads, model.feed_forward, model.positions,
                        model.vocabulary});
  expect_heads("bert", model.heads, model.hidden);
  ModelBuilder out("bert", kAnyBatch);
  const SizeExpr batch = SizeExpr::batch();
  const ModelBuilder::Sizes each{batch, model.positions};
  const TensorId words = out.input("words", each, DType::kI64);
  const TensorId sentences = out.input("sentences", each, DType::kI64);
  const TensorId labels = out.input("labels", each, DType::kI64);
  const TensorId follows = out.input("follows", {batch}, DType::kI64);
  const TensorId table = out.parameter("embeddings.words.weight", {model.vocabulary, model.hidden});

  out.enter("embeddings");
  const TensorId word = out.look_up("words", table, words);
  const TensorId sentence = out.embedding("sentences", sentences, 2, model.hidden);
  const TensorId place = out.position_embedding("positions", model.positions, model.positions, model.hidden);
  const TensorId both = out.map("both", "aten.add.Tensor", {word, sentence});
  TensorId x = out.layer_norm("norm", out.map("sum", "aten.add.Tensor", {both, place}));
  for (std::int64_t l = 0; l < model.layers; ++l) {
    out.enter("layers." + std::to_string(l));
    x = bert_layer(out, x, model);
  }

  out.enter("pooler");
  const TensorId first = out.view("first", "aten.select.int", x, {batch, model.hidden});
  const TensorId pooled = out.map("tanh", "aten.tanh.default", {out.linear("dense", first, model.hidden)});
  out.enter("sentences");
  const TensorId relation = out.cross_entropy("loss", out.linear("output", pooled, 2), follows);
  out.enter("words");
  const TensorId dense = out.linear("dense", x, model.hidden);
  const TensorId normed = out.layer_norm("norm", out.map("gelu", "aten.gelu.default", {dense}));
  const TensorId bias = out.parameter("words.output.bias", {model.vocabulary});
  const TensorId logits = out.add("output", "aten.linear.default", {normed, table, bias},
                                  {batch, model.positions, model.vocabulary});
  const TensorId masked = out.cross_entropy("loss", logits, labels);
  out.enter("");
  return out.finish(out.map("loss", "aten.add.Tensor", {masked, relation}));
}

Graph build(const Llama& model) {
  const std::string name = model.experts > 0 ? "mixture-of-experts" : "llama";
  ModelBuilder out(name, kAnyBatch);
  const SizeExpr batch = SizeExpr::batch();
  const TensorId words = out.input("words", {batch, model.positions}, DType::kI64);
  const TensorId labels = out.input("labels", {batch, model.positions}, DType::kI64);
  const TensorId embedded = out.embedding("embedding", words, model.vocabulary, model.hidden);
  const TensorId x = llama_decoder(out, embedded, model);
  out.enter("head");
  const TensorId logits = out.linear("logits", x, model.vocabulary, Bias::kWithout);
  return out.finish(out.cross_entropy("loss", logits, labels));
}

Graph build(const TransformerXl& model) {
  expect_sizes("transformer-xl", {model.layers, model.hidden, model.heads, model.feed_forward,
                                  model.positions, model.vocabulary, model.segments});
  expect_heads("transformer-xl", model.heads, model.hidden);
  if (model.hidden % 2 != 0)
    throw InputError("transformer-xl: the hidden size is even, a sine and a cosine each");
  ModelBuilder out("transformer-xl", kAnyBatch);
  const SizeExpr batch = SizeExpr::batch();
  const std::int64_t head = model.hidden / model.heads;
  const TensorId table = out.parameter("embedding.weight", {model.vocabulary, model.hidden});
  const TensorId ones =
      out.generate("ones", "aten.ones.default", {model.positions, 2 * model.positions}, DType::kBool);
  const RelativeAttention by{
      relative_positions(out, model), out.parameter("u", {model.heads, 1, head}),
      out.parameter("v", {model.heads, 1, head}),
      out.derive("mask", "aten.triu.default", {ones}, {model.positions, 2 * model.positions})};
  std::vector<TensorId> memories, losses;
  for (std::int64_t s = 0; s < model.segments; ++s) {
    const std::string of = s == 0 ? "" : ".segment_" + std::to_string(s);  // the first has the plain names
    out.enter(s == 0 ? "" : "layers.0" + of);
    const TensorId words = out.input("words" + of, {batch, model.positions}, DType::kI64);
    const TensorId labels = out.input("labels" + of, {batch, model.positions}, DType::kI64);
    TensorId x = out.look_up("embedding", table, words);
    std::vector<TensorId> states;
    for (std::int64_t l = 0; l < model.layers; ++l) {
      const std::string layer = "layers." + std::to_string(l);
      states.push_back(x);
      const TensorId memory = s == 0 ? out.input("memory." + std::to_string(l), out.sizes(x))
                                     : memories[static_cast<std::size_t>(l)];
      out.enter(layer + of);
      if (s > 0) out.share_parameters(layer + of, layer);
      x = transformer_xl_layer(out, x, memory, model, by);
    }
    memories.clear();
    for (std::size_t l = 0; l < states.size() && s + 1 < model.segments; ++l) {
      out.enter("layers." + std::to_string(l) + of);
      memories.push_back(out.detach("memory", states[l]));
    }
    out.enter("head" + of);
    if (s > 0) out.share_parameters("head" + of, "head");
    const TensorId bias = out.parameter("head" + of + ".logits.bias", {model.vocabulary});
    const TensorId logits = out.add("logits", "aten.linear.default", {x, table, bias},
                                    {batch, model.positions, model.vocabulary});
    losses.push_back(out.cross_entropy("loss", logits, labels));
  }
  TensorId loss = losses.front();
  for (std::size_t s = 1; s < losses.size(); ++s) {
    out.enter("head.segment_" + std::to_string(s));
    loss = out.map("loss_sum", "aten.add.Tensor", {loss, losses[s]});
  }
  return out.finish(loss);
}

// ---- Llama's layers, for what is built around them

TensorId llama_decoder(ModelBuilder& out, TensorId x, const Llama& model) {
  const std::string name = model.experts > 0 ? "mixture-of-experts" : "llama";
  expect_sizes(name, {model.layers, model.hidden, model.heads, model.key_value_heads, model.feed_forward,
                      model.positions, model.vocabulary, model.experts + 1, model.experts_per_token});
  expect_heads(name, model.heads, model.hidden);
  if (model.heads % model.key_value_heads != 0) {
    throw InputError(name + ": " + std::to_string(model.key_value_heads) +
                     " heads of keys and values do not divide the " + std::to_string(model.heads) + " heads");
  }
  if (model.hidden / model.heads % 2 != 0) {
    throw InputError(name +
                     ": a head's width, hidden / heads = " + std::to_string(model.hidden / model.heads) +
                     ", is even: its halves turn against each other");
  }
  if (model.experts > 0 && model.experts_per_token > model.experts) {
    throw InputError(name + ": a token has at most as many experts as there are, " +
                     std::to_string(model.experts));
  }
  const ModelBuilder::Rotary rotary = out.rotary("rotary", out.size(x, 1), model.hidden / model.heads);
  for (std::int64_t l = 0; l < model.layers; ++l) {
    const auto scope = out.inside("layers", l);
    const TensorId normed = out.rms_norm("norm_1", x);
    const TensorId attended = out.attention("attn", normed, normed,
                                            {.heads = model.heads,
                                             .key_value_heads = model.key_value_heads,
                                             .bias = Bias::kWithout,
                                             .key_bias = Bias::kWithout,
                                             .rotary = rotary});
    x = out.map("attn_sum", "aten.add.Tensor", {x, attended});
    const TensorId normed_again = out.rms_norm("norm_2", x);
    const TensorId inner = model.experts > 0
                               ? routed_feed_forward(out, "moe", normed_again, model)
                               : gated_feed_forward(out, "mlp", normed_again, model.feed_forward);
    x = out.map("sum", "aten.add.Tensor", {x, inner});
  }
  return out.rms_norm("norm", x);
}

}  // namespace espalier
