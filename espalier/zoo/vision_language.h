#pragma once

// Models of images, and of images beside words. Batch: any; no dropout. h = hidden, f = feed_forward, L =
// layers, n = (image / patch)² patches, V = vocabulary; flops are those of matrix work, forward, for one
// sample. A layer is 4h² + 2h·f + 9h + f parameters, 8·N·h² + 4·N²·h + 4·N·h·f flops over N positions.

#include "espalier/graph/graph.h"
#include "espalier/zoo/transformers.h"

namespace espalier {

// What turns an image of 3 channels into n + 1 rows: patches and a class token.
struct ImageTower {
  std::int64_t image = 224;  // pixels of a side
  std::int64_t patch = 16;   // pixels of a side
  std::int64_t layers = 12;
  std::int64_t hidden = 768;
  std::int64_t heads = 12;
  std::int64_t feed_forward = 3072;
};

// ViT (Dosovitskiy et al., arXiv 2010.11929) with one linear layer over the class token.
//
//   parameters = 3·patch²·h + h + h + (n + 1)·h + L·layer + 2h + classes·h + classes
//   flops = 6·n·patch²·h + L·layer over n + 1 + 2·h·classes
//
// The usual one is ViT-B/16: 86,567,656 parameters.
struct VisionTransformer {
  ImageTower tower = {};
  std::int64_t classes = 1000;
};

// CLIP (Radford et al., arXiv 2103.00020): a tower for images beside one for captions; both projections are
// normalized and each is compared with all of the batch's others, so the samples of a batch depend on each
// other. The image tower has a norm before its layers and no bias in its patches. gelu stands for QuickGELU.
// T = positions of a caption, t = text's sizes, e = embedding.
//
//   parameters = 3·patch²·h + h + (n + 1)·h + L·layer + 4h + e·h  image
//              + V·t + T·t + L_t·layer_t + 2t + e·t  text    + 1  temperature
//   flops at batch b = b·(6·n·patch²·h + L·layer over n + 1 + 2·h·e)   images
//                    + b·(L_t·layer_t over T + 2·t·e) + 2·b²·e   captions, then each with each
//
// The usual one is ViT-B/32: 151,277,313 parameters.
struct Clip {
  ImageTower image = {.patch = 32};
  struct Text {
    std::int64_t layers = 12;
    std::int64_t hidden = 512;
    std::int64_t heads = 8;
    std::int64_t feed_forward = 2048;
    std::int64_t positions = 77;
    std::int64_t vocabulary = 49'408;
  } text = {};
  std::int64_t embedding = 512;
};

// A language model that reads images: each encoder's patches, as two linear layers and gelu project them,
// stand before the words (LLaVA, arXiv 2304.08485 and 2310.03744). All encoders are alike.
//
//   parameters = encoders · (3·patch²·h + h + (n + 1)·h + L·layer + 4h  + (h + 1)·H + H² + H) + the language
//                model's, H its hidden size
//
// The usual one is LLaVA-1.5 7B with one encoder, ViT-L/14 at 336 pixels, of which it uses all 24 layers
// here, 576 patches before 1024 words: 303,507,456 + 20,979,712 + 6,738,415,616 parameters. The loss is that
// of the words. Its language model's `positions` count the words.
struct VisionLanguage {
  std::int64_t encoders = 1;
  ImageTower encoder = {
      .image = 336, .patch = 14, .layers = 24, .hidden = 1024, .heads = 16, .feed_forward = 4096};
  Llama language = {.positions = 1024};
};

// ViLBERT (Lu et al., arXiv 1908.02265): a stream of words and a stream of image regions; after some layers
// of words, co-attention layers in which either stream asks the other's keys and values, each followed by a
// layer of either stream. It is no series-parallel graph: a stream's queries wait for nobody, its attention
// waits for the other's keys. Norms stand behind each half of a layer. h, f, L are the words', r, g, M the
// regions' (also the width of the co-attention), P positions, F features of a region, C classes, K
// connections.
//
//   parameters = V·h + P·h + 2h + F·r + 9r   embeddings
//              + L·(4h² + 2h·f + 9h + f) + M·(4r² + 2r·g + 9r + g)
//              + K·(4r·(h + r) + 6r + 2h·f + f + 2r·g + g + 6·(h + r))
//              + h·r + h² + 3h + V + 2r² + 7r + r·C + C + 2   heads
struct CoAttention {
  std::int64_t word_layers = 12;
  std::int64_t region_layers = 6;
  std::int64_t connections = 6;  // co-attention layers, at most as many as layers of either stream
  std::int64_t hidden = 768;     // of words
  std::int64_t heads = 12;
  std::int64_t feed_forward = 3072;
  std::int64_t region_hidden = 1024;  // also the width of the co-attention
  std::int64_t region_heads = 8;
  std::int64_t region_feed_forward = 1024;
  std::int64_t positions = 36;  // words
  std::int64_t regions = 37;
  std::int64_t region_features = 2048;
  std::int64_t region_classes = 1601;
  std::int64_t vocabulary = 30'522;
};

// Throw InputError where a size is below 1, heads do not divide a hidden size, patches do not divide the
// image, or there are more connections than layers of a stream.
Graph build(const VisionTransformer& model);
Graph build(const Clip& model);
Graph build(const VisionLanguage& model);
Graph build(const CoAttention& model);

}  // namespace espalier
