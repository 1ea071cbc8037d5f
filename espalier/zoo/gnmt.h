#pragma once

// GNMT (Wu et al., arXiv 1609.08144), unrolled over time as the placement literature has it: an operator for
// each step of each layer, so 8 layers make a graph of tens of thousands of operators (GDP, arXiv
// 1910.01578).
//
//   encoder  layer 0 in both directions; layer 1 reads the two side by side; residual sums from layer 2 on
//   decoder  layer 0 reads the embedded target word beside the last step's context, and asks the attention;
//            the others read the layer below beside this step's context; residual sums from layer 2 on
//   attention  additive: keys = memory · Wm once, then at each step softmax(v · tanh(keys + query · Wq))
//   projection to the vocabulary and cross entropy at each step; the loss is their mean
//
// A cell is the plain one, 14 operators: cat(x, h), its product with the weights, + bias, chunk into i j f o,
// f + 1, three sigmoids, tanh(j), c·f, i·j, their sum, its tanh, the product with o; then dropout. With
// h = hidden, V = vocabulary, L = layers ≥ 2:
//
//   parameters = 2·V·h  embeddings
//              + 2·(8h² + 4h) + (12h² + 4h) + (L - 2)·(8h² + 4h)  encoder
//              + L·(12h² + 4h)  decoder
//              + 2h² + h  attention    + V·h + V  projection
//
// Batch: any. Source and target have one length here. At the default of 128 words the training graphs of 2, 4
// and 8 layers (expand_backward) are within 4 % of the 28,044, 46,600 and 83,712 operators that are told of
// such graphs (zoo_test.cc); nothing was added to come nearer.

#include "espalier/graph/graph.h"

namespace espalier {

struct Gnmt {
  std::int64_t layers = 8;  // of the encoder, and of the decoder
  std::int64_t hidden = 1024;
  std::int64_t vocabulary = 32'000;
  std::int64_t length = 128;  // words of source and target
};

// Throws InputError where there are fewer than 2 layers or another size is below 1.
Graph build(const Gnmt& model);

}  // namespace espalier
