#include "espalier/zoo/zoo.h"

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/base/spelling.h"
#include "espalier/zoo/cells.h"
#include "espalier/zoo/convolutional.h"
#include "espalier/zoo/encoder_decoders.h"
#include "espalier/zoo/gnmt.h"
#include "espalier/zoo/graph_networks.h"
#include "espalier/zoo/multi_modal_transformer.h"
#include "espalier/zoo/recommenders.h"
#include "espalier/zoo/recurrent.h"
#include "espalier/zoo/transformers.h"
#include "espalier/zoo/vision_language.h"

namespace espalier {
namespace {

constexpr std::int64_t kWidest = 1 << 20;
constexpr std::int64_t kLongest = 10'000;
constexpr std::int64_t kMostWords = 10'000'000;

// Settings that mean the same in many models.
ZooSetting layers(std::int64_t usual, const char* of = "layers, one after the other") {
  return {"layers", of, usual, 1, kLongest};
}
ZooSetting hidden(std::int64_t usual) {
  return {"hidden", "width of a position", usual, 1, kWidest};
}
ZooSetting heads(std::int64_t usual) {
  return {"heads", "attention heads; they divide the hidden size", usual, 1, kWidest};
}
ZooSetting feed_forward(std::int64_t usual) {
  return {"feed-forward", "width inside the feed-forward part", usual, 1, kWidest};
}
ZooSetting positions(std::int64_t usual) {
  return {"positions", "positions of each input", usual, 1, kWidest};
}
ZooSetting vocabulary(std::int64_t usual) {
  return {"vocabulary", "words that there are", usual, 1, kMostWords};
}
ZooSetting image(std::int64_t usual, std::int64_t least = 1) {
  return {"image", "pixels of a side", usual, least, kWidest};
}
ZooSetting classes(std::int64_t usual) {
  return {"classes", "classes to tell apart", usual, 1, kWidest};
}

using Catalog = std::vector<ZooModel>;

// ---- Multi-Modal Transformer, and what else GraphPipe evaluates

std::vector<ZooSetting> multi_modal_settings(std::int64_t branches, std::int64_t branch_layers) {
  return {{"branches", "branches side by side", branches, 1, 64},
          layers(branch_layers, "layers of a branch"),
          positions(256),
          hidden(1024),
          heads(16),
          feed_forward(4096)};
}

std::function<Graph(const ZooValues&)> multi_modal(const std::string& name) {
  return [name](const ZooValues& all) {
    return build(MultiModalTransformer{.branches = all.at("branches"),
                                       .layers = all.at("layers"),
                                       .positions = all.at("positions"),
                                       .hidden = all.at("hidden"),
                                       .heads = all.at("heads"),
                                       .feed_forward = all.at("feed-forward"),
                                       .name = name});
  };
}

void add_multi_modal(Catalog& catalog) {
  catalog.push_back({"mmt", "GraphPipe, arXiv 2406.17145, A.2",
                     "Multi-Modal Transformer: branches of Transformer layers, joined at the end",
                     multi_modal_settings(4, 8), multi_modal("mmt")});
  catalog.push_back({"case-study", "GraphPipe's case study, arXiv 2406.17145",
                     "two branches of four Transformer layers, joined at the end", multi_modal_settings(2, 4),
                     multi_modal("case-study")});
  catalog.push_back({"sequential", "GraphPipe, arXiv 2406.17145, A.3",
                     "one chain of the Multi-Modal Transformer's layers", multi_modal_settings(1, 32),
                     multi_modal("sequential")});
}

// ---- Recommenders

void add_recommenders(Catalog& catalog) {
  catalog.push_back({"dlrm",
                     "arXiv 1906.00091; sizes of GraphPipe, arXiv 2406.17145, A.2",
                     "branches of dense layers beside tables of embeddings, then dense layers",
                     {{"dense", "dense branches", 7, 0, 1024},
                      {"sparse", "tables", 7, 0, 1024},
                      layers(4, "layers of a dense branch"),
                      {"width", "width of a dense layer", 4096, 1, kWidest},
                      {"rows", "rows of a table", 1'000'000, 1, 1'000'000'000},
                      {"embedding", "width of a row", 64, 1, kWidest},
                      {"bag", "rows that a sample picks of a table", 100, 1, kLongest},
                      {"top", "layers above the concatenation", 4, 1, kLongest},
                      {"side-by-side", "1: the rows of a bag side by side instead of their sum", 0, 0, 1}},
                     [](const ZooValues& all) {
                       const bool apart = all.at("side-by-side") == 1;
                       return build(Dlrm{.dense = all.at("dense"),
                                         .sparse = all.at("sparse"),
                                         .layers = all.at("layers"),
                                         .width = all.at("width"),
                                         .rows = all.at("rows"),
                                         .embedding = all.at("embedding"),
                                         .bag = all.at("bag"),
                                         .top = all.at("top"),
                                         .reduction = apart ? Dlrm::Bag::kSideBySide : Dlrm::Bag::kSummed});
                     }});
  catalog.push_back({"candle-uno",
                     "CANDLE; sizes of GraphPipe, arXiv 2406.17145, A.2",
                     "towers of dense layers, one for each sort of features, then dense layers",
                     {{"branches", "towers side by side", 7, 1, 64},
                      layers(4, "layers of a tower"),
                      {"width", "width of features and layers", 4096, 1, kWidest},
                      {"head", "layers above the concatenation", 4, 1, kLongest}},
                     [](const ZooValues& all) {
                       const auto towers = static_cast<std::size_t>(all.at("branches"));
                       return build(CandleUno{.features = std::vector<std::int64_t>(towers, all.at("width")),
                                              .layers = all.at("layers"),
                                              .width = all.at("width"),
                                              .head = all.at("head")});
                     }});
  catalog.push_back({"candle-uno-flexflow",
                     "CANDLE; as FlexFlow, arXiv 1807.05358, trains it",
                     "five towers without biases over real counts of features; two doses pass by",
                     {layers(8, "layers of a tower"),
                      {"width", "width of a layer", 4192, 1, kWidest},
                      {"head", "layers above the concatenation", 4, 1, kLongest}},
                     [](const ZooValues& all) {
                       CandleUno model = flexflow_candle_uno();
                       model.layers = all.at("layers");
                       model.width = all.at("width");
                       model.head = all.at("head");
                       return build(model);
                     }});
}

// ---- Chains of Transformer layers

std::vector<ZooSetting> llama_settings(const Llama& usual) {
  return {layers(usual.layers),
          hidden(usual.hidden),
          heads(usual.heads),
          {"key-value-heads", "heads of keys and values; they divide the heads", usual.key_value_heads, 1,
           kWidest},
          feed_forward(usual.feed_forward),
          positions(usual.positions),
          vocabulary(usual.vocabulary)};
}

Llama llama_of(const ZooValues& all) {
  return {.layers = all.at("layers"),
          .hidden = all.at("hidden"),
          .heads = all.at("heads"),
          .key_value_heads = all.at("key-value-heads"),
          .feed_forward = all.at("feed-forward"),
          .positions = all.at("positions"),
          .vocabulary = all.at("vocabulary")};
}

void add_language_models(Catalog& catalog) {
  catalog.push_back({"gpt",
                     "GPT-2, Radford et al. 2019",
                     "a chain of Transformer layers that predicts the next word",
                     {layers(12), hidden(768), heads(12), positions(1024), vocabulary(50'257)},
                     [](const ZooValues& all) {
                       return build(Gpt{.layers = all.at("layers"),
                                        .hidden = all.at("hidden"),
                                        .heads = all.at("heads"),
                                        .positions = all.at("positions"),
                                        .vocabulary = all.at("vocabulary")});
                     }});
  catalog.push_back(
      {"bert",
       "arXiv 1810.04805",
       "a chain of Transformer layers that fills in words, and says whether sentences follow each other",
       {layers(12), hidden(768), heads(12), feed_forward(3072), positions(512), vocabulary(30'522)},
       [](const ZooValues& all) {
         return build(Bert{.layers = all.at("layers"),
                           .hidden = all.at("hidden"),
                           .heads = all.at("heads"),
                           .feed_forward = all.at("feed-forward"),
                           .positions = all.at("positions"),
                           .vocabulary = all.at("vocabulary")});
       }});
  catalog.push_back({"llama", "arXiv 2302.13971; grouped queries of arXiv 2307.09288",
                     "a chain of layers with rotary positions and a gated feed-forward part",
                     llama_settings(Llama{}), [](const ZooValues& all) { return build(llama_of(all)); }});
  std::vector<ZooSetting> mixture = llama_settings({.key_value_heads = 8, .feed_forward = 14'336});
  mixture.push_back({"experts", "feed-forward parts of a layer", 8, 1, kLongest});
  mixture.push_back({"experts-per-token", "experts that a token has on average", 2, 1, kLongest});
  catalog.push_back({"mixture-of-experts", "Mixtral, arXiv 2401.04088; static capacity of arXiv 2202.09368",
                     "Llama's layers with several feed-forward parts, among which a router deals the tokens",
                     std::move(mixture), [](const ZooValues& all) {
                       Llama model = llama_of(all);
                       model.experts = all.at("experts");
                       model.experts_per_token = all.at("experts-per-token");
                       return build(model);
                     }});
  catalog.push_back({"transformer-xl",
                     "arXiv 1901.02860; placed in GDP, arXiv 1910.01578",
                     "a chain of layers that attend to the segment before, by relative positions",
                     {layers(12),
                      hidden(512),
                      heads(8),
                      feed_forward(2048),
                      positions(512),
                      vocabulary(204),
                      {"segments", "segments of a step; each remembers the one before", 1, 1, kLongest}},
                     [](const ZooValues& all) {
                       return build(TransformerXl{.layers = all.at("layers"),
                                                  .hidden = all.at("hidden"),
                                                  .heads = all.at("heads"),
                                                  .feed_forward = all.at("feed-forward"),
                                                  .positions = all.at("positions"),
                                                  .vocabulary = all.at("vocabulary"),
                                                  .segments = all.at("segments")});
                     }});
}

// ---- Encoders with decoders

void add_encoder_decoders(Catalog& catalog) {
  const ZooSetting source{"source", "positions of the source", 512, 1, kWidest};
  const ZooSetting target{"target", "positions of the target", 512, 1, kWidest};
  catalog.push_back({"t5",
                     "arXiv 1910.10683",
                     "an encoder whose result every layer of a decoder reads",
                     {layers(6, "layers of the encoder, and of the decoder"),
                      hidden(512),
                      {"heads", "attention heads", 8, 1, kWidest},
                      {"head-width", "width of a head", 64, 1, kWidest},
                      feed_forward(2048),
                      source,
                      target,
                      vocabulary(32'128),
                      {"buckets", "classes of relative distances", 32, 2, kWidest}},
                     [](const ZooValues& all) {
                       return build(T5{.layers = all.at("layers"),
                                       .hidden = all.at("hidden"),
                                       .heads = all.at("heads"),
                                       .head_width = all.at("head-width"),
                                       .feed_forward = all.at("feed-forward"),
                                       .source = all.at("source"),
                                       .target = all.at("target"),
                                       .vocabulary = all.at("vocabulary"),
                                       .buckets = all.at("buckets")});
                     }});
  catalog.push_back(
      {"whisper",
       "arXiv 2212.04356",
       "speech to text: convolutions and an encoder, and a decoder that reads it in every layer",
       {layers(4, "layers of the encoder, and of the decoder"),
        hidden(384),
        heads(6),
        feed_forward(1536),
        {"mels", "numbers of a frame of sound", 80, 1, kWidest},
        {"source", "positions of the encoder, half of the frames", 1500, 1, kWidest},
        {"target", "positions of the decoder", 448, 1, kWidest},
        vocabulary(51'865)},
       [](const ZooValues& all) {
         return build(Whisper{.layers = all.at("layers"),
                              .hidden = all.at("hidden"),
                              .heads = all.at("heads"),
                              .feed_forward = all.at("feed-forward"),
                              .mels = all.at("mels"),
                              .source = all.at("source"),
                              .target = all.at("target"),
                              .vocabulary = all.at("vocabulary")});
       }});
  catalog.push_back({"gnmt",
                     "arXiv 1609.08144; unrolled as in GDP, arXiv 1910.01578",
                     "translation by recurrent layers and attention, an operator for each step in time",
                     {{"layers", "layers of the encoder, and of the decoder", 8, 2, 100},
                      {"hidden", "width of a layer", 1024, 1, kWidest},
                      {"vocabulary", "words of either language", 32'000, 1, kMostWords},
                      {"length", "words of source and target", Gnmt().length, 1, kLongest}},
                     [](const ZooValues& all) {
                       return build(Gnmt{.layers = all.at("layers"),
                                         .hidden = all.at("hidden"),
                                         .vocabulary = all.at("vocabulary"),
                                         .length = all.at("length")});
                     }});
}

// ---- Images, and images beside words

std::vector<ZooSetting> tower_settings(const ImageTower& usual) {
  return {image(usual.image),   {"patch", "pixels of a patch's side", usual.patch, 1, kWidest},
          layers(usual.layers), hidden(usual.hidden),
          heads(usual.heads),   feed_forward(usual.feed_forward)};
}

ImageTower tower_of(const ZooValues& all) {
  return {.image = all.at("image"),
          .patch = all.at("patch"),
          .layers = all.at("layers"),
          .hidden = all.at("hidden"),
          .heads = all.at("heads"),
          .feed_forward = all.at("feed-forward")};
}

void add_vision_language(Catalog& catalog) {
  std::vector<ZooSetting> vit = tower_settings({});
  vit.push_back(classes(1000));
  catalog.push_back({"vit", "arXiv 2010.11929", "a chain of Transformer layers over patches of an image",
                     std::move(vit), [](const ZooValues& all) {
                       return build(VisionTransformer{.tower = tower_of(all), .classes = all.at("classes")});
                     }});
  const Clip usual;
  std::vector<ZooSetting> clip = tower_settings(usual.image);
  clip.insert(clip.end(), {{"text-layers", "layers of the text tower", usual.text.layers, 1, kLongest},
                           {"text-hidden", "width of the text tower", usual.text.hidden, 1, kWidest},
                           {"text-heads", "its heads; they divide its width", usual.text.heads, 1, kWidest},
                           {"text-feed-forward", "width inside its feed-forward parts",
                            usual.text.feed_forward, 1, kWidest},
                           {"positions", "words of a caption", usual.text.positions, 1, kWidest},
                           vocabulary(usual.text.vocabulary),
                           {"embedding", "width in which towers are compared", usual.embedding, 1, kWidest}});
  catalog.push_back({"clip", "arXiv 2103.00020",
                     "a tower for images beside one for captions, then who fits whom", std::move(clip),
                     [](const ZooValues& all) {
                       return build(Clip{.image = tower_of(all),
                                         .text = {.layers = all.at("text-layers"),
                                                  .hidden = all.at("text-hidden"),
                                                  .heads = all.at("text-heads"),
                                                  .feed_forward = all.at("text-feed-forward"),
                                                  .positions = all.at("positions"),
                                                  .vocabulary = all.at("vocabulary")},
                                         .embedding = all.at("embedding")});
                     }});
}

void add_image_readers(Catalog& catalog) {
  const VisionLanguage usual;
  std::vector<ZooSetting> reader = llama_settings(usual.language);
  reader.insert(reader.end(),
                {{"encoders", "image encoders side by side", usual.encoders, 1, 64},
                 image(usual.encoder.image),
                 {"patch", "pixels of a patch's side", usual.encoder.patch, 1, kWidest},
                 {"encoder-layers", "layers of an encoder", usual.encoder.layers, 1, kLongest},
                 {"encoder-hidden", "width of an encoder", usual.encoder.hidden, 1, kWidest},
                 {"encoder-heads", "its heads; they divide its width", usual.encoder.heads, 1, kWidest},
                 {"encoder-feed-forward", "width inside its feed-forward parts", usual.encoder.feed_forward,
                  1, kWidest}});
  catalog.push_back({"vision-language", "LLaVA-1.5, arXiv 2310.03744",
                     "image encoders side by side, whose patches stand before the words of a language model",
                     std::move(reader), [](const ZooValues& all) {
                       return build(
                           VisionLanguage{.encoders = all.at("encoders"),
                                          .encoder = {.image = all.at("image"),
                                                      .patch = all.at("patch"),
                                                      .layers = all.at("encoder-layers"),
                                                      .hidden = all.at("encoder-hidden"),
                                                      .heads = all.at("encoder-heads"),
                                                      .feed_forward = all.at("encoder-feed-forward")},
                                          .language = llama_of(all)});
                     }});
  const CoAttention both;
  catalog.push_back(
      {"co-attention",
       "ViLBERT, arXiv 1908.02265",
       "a stream of words and one of image regions that attend to each other; not series-parallel",
       {layers(both.word_layers, "layers of the words' stream"),
        {"region-layers", "layers of the regions' stream", both.region_layers, 1, kLongest},
        {"connections", "co-attention layers, no more than layers of a stream", both.connections, 1,
         kLongest},
        hidden(both.hidden),
        heads(both.heads),
        feed_forward(both.feed_forward),
        {"region-hidden", "width of a region, and of the co-attention", both.region_hidden, 1, kWidest},
        {"region-heads", "heads of regions and co-attention", both.region_heads, 1, kWidest},
        {"region-feed-forward", "width inside the regions' feed-forward parts", both.region_feed_forward, 1,
         kWidest},
        {"positions", "words", both.positions, 1, kWidest},
        {"regions", "regions of an image", both.regions, 1, kWidest},
        {"features", "numbers that describe a region", both.region_features, 1, kWidest},
        classes(both.region_classes),
        vocabulary(both.vocabulary)},
       [](const ZooValues& all) {
         return build(CoAttention{.word_layers = all.at("layers"),
                                  .region_layers = all.at("region-layers"),
                                  .connections = all.at("connections"),
                                  .hidden = all.at("hidden"),
                                  .heads = all.at("heads"),
                                  .feed_forward = all.at("feed-forward"),
                                  .region_hidden = all.at("region-hidden"),
                                  .region_heads = all.at("region-heads"),
                                  .region_feed_forward = all.at("region-feed-forward"),
                                  .positions = all.at("positions"),
                                  .regions = all.at("regions"),
                                  .region_features = all.at("features"),
                                  .region_classes = all.at("classes"),
                                  .vocabulary = all.at("vocabulary")});
       }});
}

// ---- Convolutions

void add_convolutional(Catalog& catalog) {
  catalog.push_back({"resnet",
                     "arXiv 1512.03385",
                     "a chain of residual blocks",
                     {{"depth", "18, 34, 50, 101 or 152", 50, 18, 152}, image(224), classes(1000)},
                     [](const ZooValues& all) {
                       return build(ResNet{
                           .depth = all.at("depth"), .image = all.at("image"), .classes = all.at("classes")});
                     }});
  catalog.push_back({"inception-v3",
                     "arXiv 1512.00567",
                     "a chain of blocks of three or four branches",
                     {image(299, 75), classes(1000), {"auxiliary", "1: the second classifier", 1, 0, 1}},
                     [](const ZooValues& all) {
                       const bool second = all.at("auxiliary") == 1;
                       return build(InceptionV3{.image = all.at("image"),
                                                .classes = all.at("classes"),
                                                .auxiliary = second ? InceptionV3::Auxiliary::kWith
                                                                    : InceptionV3::Auxiliary::kWithout});
                     }});
  catalog.push_back(
      {"nasnet",
       "arXiv 1707.07012",
       "cells found by search; each reads the two before it",
       {{"cells", "normal cells in each of three groups", 6, 1, kLongest},
        {"filters", "channels of the first group; a multiple of 4", 168, 4, kWidest},
        {"stem", "channels of the first convolution", 96, 1, kWidest},
        image(331, 3),
        classes(1000),
        {"beyond", "1: behind a reduction, the cell before it is read too, as the large model does", 1, 0,
         1}},
       [](const ZooValues& all) {
         const bool beyond = all.at("beyond") == 1;
         return build(NasNet{.cells = all.at("cells"),
                             .filters = all.at("filters"),
                             .stem = all.at("stem"),
                             .image = all.at("image"),
                             .classes = all.at("classes"),
                             .reach = beyond ? NasNet::Reach::kBeyond : NasNet::Reach::kReduction});
       }});
  catalog.push_back({"amoebanet",
                     "AmoebaNet-D, arXiv 1802.01548, as in GPipe, arXiv 1811.06965",
                     "cells found by evolution; each reads the two before it",
                     {layers(18, "normal cells, a multiple of 3"),
                      {"filters", "channels of the first group; a multiple of 8", 208, 8, kWidest},
                      image(224, 32),
                      classes(1000)},
                     [](const ZooValues& all) {
                       return build(AmoebaNet{.layers = all.at("layers"),
                                              .filters = all.at("filters"),
                                              .image = all.at("image"),
                                              .classes = all.at("classes")});
                     }});
  catalog.push_back({"u-net",
                     "arXiv 1505.04597",
                     "down to small images and up again, past skips between equal sizes",
                     {{"width", "channels at the top", 64, 1, 1 << 16},
                      {"levels", "how often the image is halved", 4, 1, 20},
                      image(512),
                      {"channels", "channels of the image", 1, 1, kWidest},
                      classes(2)},
                     [](const ZooValues& all) {
                       return build(UNet{.width = all.at("width"),
                                         .levels = all.at("levels"),
                                         .image = all.at("image"),
                                         .channels = all.at("channels"),
                                         .classes = all.at("classes")});
                     }});
}

// ---- Sound, recurrent layers, graphs

void add_sequences(Catalog& catalog) {
  catalog.push_back(
      {"wavenet",
       "arXiv 1609.03499; placed in GDP, arXiv 1910.01578",
       "causal convolutions with growing dilation; all send to one sum",
       {{"stacks", "how often the dilation begins again; they divide the layers", 2, 1, kLongest},
        layers(18, "layers of all stacks"),
        {"channels", "channels of a layer", 64, 1, kWidest},
        {"skip", "channels of the sum", 256, 1, kWidest},
        classes(256),
        {"length", "samples of sound", 8000, 1, 1 << 24}},
       [](const ZooValues& all) {
         return build(WaveNet{.stacks = all.at("stacks"),
                              .layers = all.at("layers"),
                              .channels = all.at("channels"),
                              .skip = all.at("skip"),
                              .classes = all.at("classes"),
                              .length = all.at("length")});
       }});
  catalog.push_back({"rnnlm",
                     "arXiv 1602.02410; sizes of arXiv 1409.2329; placed in GDP, arXiv 1910.01578",
                     "recurrent layers that predict the next word, an operator for each step in time",
                     {layers(2),
                      {"hidden", "width of a layer", 1500, 1, kWidest},
                      vocabulary(10'000),
                      {"length", "words", 35, 1, kLongest}},
                     [](const ZooValues& all) {
                       return build(RecurrentLanguageModel{.layers = all.at("layers"),
                                                           .hidden = all.at("hidden"),
                                                           .vocabulary = all.at("vocabulary"),
                                                           .length = all.at("length")});
                     }});
  catalog.push_back({"gnn",
                     "GNNPipe, arXiv 2308.10087",
                     "graph convolutions over chunks of vertices that follow each other through the layers",
                     {{"chunks", "chunks of vertices", 8, 1, kLongest},
                      layers(8),
                      {"vertices", "vertices of a chunk", 4096, 1, 1 << 30},
                      {"edges", "edges that end in a chunk", 65'536, 1, 1 << 30},
                      {"features", "numbers that describe a vertex", 128, 1, kWidest},
                      {"hidden", "width of a layer", 256, 1, kWidest},
                      classes(40)},
                     [](const ZooValues& all) {
                       return build(ChunkedGraphNetwork{.chunks = all.at("chunks"),
                                                        .layers = all.at("layers"),
                                                        .vertices = all.at("vertices"),
                                                        .edges = all.at("edges"),
                                                        .features = all.at("features"),
                                                        .hidden = all.at("hidden"),
                                                        .classes = all.at("classes")});
                     }});
}

}  // namespace

const std::vector<ZooModel>& zoo_models() {
  static const Catalog kModels = [] {
    Catalog catalog;
    add_multi_modal(catalog);
    add_recommenders(catalog);
    add_language_models(catalog);
    add_encoder_decoders(catalog);
    add_vision_language(catalog);
    add_image_readers(catalog);
    add_convolutional(catalog);
    add_sequences(catalog);
    return catalog;
  }();
  return kModels;
}

const ZooModel& find_zoo_model(std::string_view name) {
  std::vector<std::string_view> names;
  for (const ZooModel& model : zoo_models()) {
    if (model.name == name) return model;
    names.push_back(model.name);
  }
  throw InputError("there is no model '" + std::string(name.substr(0, 40)) + "' in the zoo; did you mean '" +
                   std::string(*nearest_word(name, names)) + "'? (`espalier zoo --list` lists all)");
}

ZooValues all_values(std::string_view name, const std::vector<ZooSetting>& settings, const ZooValues& given) {
  const std::string model(name);
  ZooValues all;
  for (const ZooSetting& setting : settings) all.emplace(setting.name, setting.usual);
  for (const auto& [key, value] : given) {
    const auto setting = std::find_if(settings.begin(), settings.end(),
                                      [&key = key](const ZooSetting& s) { return s.name == key; });
    if (setting == settings.end()) {
      std::string known;
      for (const ZooSetting& s : settings) known += (known.empty() ? "" : ", ") + s.name;
      throw InputError(model + " has no setting '" + key + "'; it has " + known);
    }
    if (value < setting->least || value > setting->most) {
      throw InputError(model + ": " + key + " is " + std::to_string(value) + "; expected " +
                       std::to_string(setting->least) + " to " + std::to_string(setting->most));
    }
    all[key] = value;
  }
  return all;
}

Graph build_zoo_model(std::string_view name, const ZooValues& given) {
  const ZooModel& model = find_zoo_model(name);
  return model.build(all_values(model.name, model.settings, given));
}

}  // namespace espalier
