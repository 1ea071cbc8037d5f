#pragma once

// Networks of the traversal-order study's three families (arXiv 2201.09676, DAIS 2022; the graphs are those
// of Placeto, NeurIPS'19, found by ENAS, arXiv 1802.03268), as grouped graphs: one task for what Placeto
// groups. Their files are not public as graphs that we may use, so each is drawn anew from a seed by the rule
// of its paper; counts are ours. The study has 32 of each family: seeds 1 to 32 here.

#include "espalier/zoo/task_dag.h"

namespace espalier {

// ENAS's convolutional networks for CIFAR-10: 3 · `cells` normal cells and two reduction cells, which halve
// the image and double the channels, in a chain where each reads the two before it. The seed draws two cell
// designs. A cell has `nodes` nodes; a node adds two operations (separable convolutions 3 × 3 and 5 × 5, mean
// and largest of 3 × 3, identity), each on one of the two cells before or on an earlier node; what no node
// reads is laid side by side.
//
//   c = 3·cells + 2, tasks = 2 + c·(3·nodes + 1), edges from 1 + c·(4·nodes + 1) to 1 + c·(5·nodes)
struct CellNetwork {
  std::int64_t cells = 2, nodes = 5, channels = 36, image = 32, seed = 1;
};
TaskDag cell_network(const CellNetwork& network);

// ENAS's recurrent cells on the Penn Treebank, unrolled: in each step a word's embedding, `nodes` nodes, each
// a product with a matrix and an activation, the mean of those that no node reads, and the classifier; at the
// end the loss. The seed draws the tree: node 0 reads the word and the last step's mean, node i an earlier
// node. The weights of a node lie with its first step.
//
//   tasks = steps·(nodes + 3) + 1, edges from steps·(nodes + 4) - 1 to steps·(2·nodes + 2) - 1 (nodes ≥ 2)
struct RecurrentCells {
  std::int64_t steps = 12, nodes = 8, hidden = 850, vocabulary = 10'000, seed = 1;
};
TaskDag recurrent_cells(const RecurrentCells& network);

// Translation with attention, unrolled: an encoder and a decoder of LSTM layers, a task for each layer and
// word, attention over the encoder's last layer and a classifier for each word of the decoder, and the loss.
// The seed draws L = 2 … `layers`, S and T = half … `words` words in and out, and whether the encoder's first
// layer reads in both directions (d = 1 or 0).
//
//   tasks = S·(1 + L + 2d) + T·(1 + L + 2) + 1
//   edges = S·(2·L + 4d) - L - d + T·(2·L + 3) + S·T   with d = 1 a task for both directions' sum
struct Translation {
  std::int64_t layers = 4, words = 12, hidden = 1'024, vocabulary = 32'000, seed = 1;
};
struct TranslationShape {  // what a seed draws
  std::int64_t layers = 0, source = 0, target = 0;
  bool both_directions = false;
};
TranslationShape translation_shape(const Translation& network);
TaskDag translation(const Translation& network);

}  // namespace espalier
