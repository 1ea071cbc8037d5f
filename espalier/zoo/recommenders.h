#pragma once

// Models with many inputs of different kinds, a branch for each, as GraphPipe's evaluation has them (arXiv
// 2406.17145, A.2). Batch: any. w = width.

#include <vector>

#include "espalier/graph/graph.h"

namespace espalier {

// DLRM (Naumov et al., arXiv 1906.00091): dense branches of linear layers and relu beside sparse ones, each
// the sum of `bag` rows of a table; concatenation; linear layers and relu; one number, judged by binary cross
// entropy. Published: 7 dense branches of 4 layers of 4096, 7 tables of 1 million rows × 64, bags of 100. The
// count of layers above the concatenation is not: it is 4 here, as in a branch. Elsewhere that paper speaks
// of 8 branches.
//
//   parameters = dense · layers · (w² + w) + sparse · rows · embedding
//              + (dense·w + sparse·embedding)·w + w + (top - 1)·(w² + w) + w + 1
//   flops a sample, forward = 2·dense·layers·w² + 2·(dense·w + sparse·embedding)·w + 2·(top - 1)·w² + 2·w
//
// As published: 469,876,736 in the dense branches ("470 M"), 448,000,000 in the tables, 29,120 numbers
// concatenated. Where the rows of a bag are laid side by side instead of summed, 73,472 are.
struct Dlrm {
  std::int64_t dense = 7;   // branches
  std::int64_t sparse = 7;  // branches
  std::int64_t layers = 4;  // of a dense branch
  std::int64_t width = 4096;
  std::int64_t rows = 1'000'000;  // of a table
  std::int64_t embedding = 64;    // width of a row
  std::int64_t bag = 100;         // rows that a sample picks of each table
  std::int64_t top = 4;           // layers above the concatenation
  enum class Bag : std::uint8_t { kSummed, kSideBySide } reduction = Bag::kSummed;
};

// CANDLE-Uno (the cancer drug response model of CANDLE's benchmarks): for each sort of features a tower of
// linear layers and relu; what is a single number passes by; concatenation; linear layers and relu; one
// number, judged by its squared error. Fᵢ = features of tower i, D = numbers that pass by, n = towers, b = 1
// with biases and 0 without.
//
//   parameters = Σ (Fᵢ·w) + n·(layers - 1)·w² + (n·w + D)·w + (head - 1)·w² + b·(n·layers + head)·w + w + b
//
// GraphPipe's: 7 towers × 4 layers of 4096 over as many features, 469,876,736 parameters in towers; its head
// is not stated: 4 layers here, as in FlexFlow's. FlexFlow's (flexflow_candle_uno): 5 towers of 8 layers of
// 4192 without biases over 942, 5270, 2048, 5270 and 2048 features, two doses that pass by, a head of 4
// layers.
struct CandleUno {
  std::vector<std::int64_t> features = std::vector<std::int64_t>(7, 4096);  // a tower for each
  std::int64_t doses = 0;
  std::int64_t layers = 4;  // of a tower
  std::int64_t width = 4096;
  std::int64_t head = 4;  // layers above the concatenation
  enum class Biases : std::uint8_t { kWithout, kWith } biases = Biases::kWith;
};
CandleUno flexflow_candle_uno();

// Throw InputError where a size is below 1 (one sort of DLRM's branches, and the doses, may be missing), or
// there is no tower.
Graph build(const Dlrm& model);
Graph build(const CandleUno& model);

}  // namespace espalier
