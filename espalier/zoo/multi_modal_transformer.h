#pragma once

// The Multi-Modal Transformer of GraphPipe's evaluation (arXiv 2406.17145, A.2): branches of Transformer
// layers side by side, one for each kind of input, joined at the end. The published configuration is the
// default: 4 branches × 8 layers, 256 positions, hidden 1024, 16 heads, feed-forward 4096; other sections of
// that paper speak of 2 branches.
//
// A layer: projections q, k, v; attention without stored scores; output projection; sum with the layer's
// input; linear, relu, linear; sum. As in the published count of 12.58 million parameters a layer and 403
// million in all there are no biases and no norms:
//
//   parameters = branches · layers · (4·hidden² + 2·hidden·feed_forward)
//   flops a sample, forward = branches · layers · positions · (2 · parameters of a layer +
//   4·positions·hidden)
//
// The same paper's case study is two branches of 4 layers, its sequential model one chain of this layer,
// whose length is not stated: 32 in the zoo, as many layers as the four branches have.
//
// The join concatenates the branches' outputs along the hidden dimension; the loss is the mean squared
// difference from a target of that size. Batch: any.

#include <string>

#include "espalier/graph/graph.h"

namespace espalier {

struct MultiModalTransformer {
  std::int64_t branches = 4;
  std::int64_t layers = 8;  // of each branch
  std::int64_t positions = 256;
  std::int64_t hidden = 1024;
  std::int64_t heads = 16;
  std::int64_t feed_forward = 4096;
  std::string name = "mmt";
};

// Throws InputError where a size is below 1 or the heads do not divide the hidden size.
Graph build(const MultiModalTransformer& model);

}  // namespace espalier
