#pragma once

// The recurrent language model of the placement literature (RNNLM; Jozefowicz et al., arXiv 1602.02410, as
// GDP, arXiv 1910.01578, places it): words, layers of the cell of lstm_cell.h with dropout above each, a
// projection to the vocabulary and cross entropy at each step; an operator for each step in time. Batch: any.
// V = vocabulary, h = hidden, L = layers.
//
//   parameters = V·h + L·(8h² + 4h) + V·h + V
//   flops a sample, forward = length·(16·L·h² + 2·h·V)
//
// The usual one has the sizes of the large model of Zaremba et al. (arXiv 1409.2329): 2 layers of 1500,
// 10,000 words, 35 steps, 66,022,000 parameters ("66M").

#include "espalier/graph/graph.h"

namespace espalier {

struct RecurrentLanguageModel {
  std::int64_t layers = 2;
  std::int64_t hidden = 1500;
  std::int64_t vocabulary = 10'000;
  std::int64_t length = 35;  // words
};

// Throws InputError where a size is below 1.
Graph build(const RecurrentLanguageModel& model);

}  // namespace espalier
