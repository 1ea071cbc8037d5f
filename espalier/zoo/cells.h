#pragma once

// Image models found by search: a chain of cells, each of which reads the two cells before it and sums pairs
// of operations inside. Their graphs are no series-parallel graphs: a cell reads past the one before. Batch:
// any, and batch normalization makes its samples depend on each other.

#include "espalier/graph/graph.h"

namespace espalier {

// NASNet-A (Zoph et al., arXiv 1707.07012) as Keras has it: a stem of a convolution and two reduction cells,
// then three times `cells` normal cells, with a reduction cell between that doubles the channels. Separable
// convolutions stand twice each. Without the second classifier.
//
// With F = filters: cells of F, 2F and 4F channels; a normal cell gives six of them side by side, so the last
// gives 24·F, "penultimate filters". The usual one is NASNet-A (6 @ 4032) of 331 pixels, 88,753,150 trained
// parameters; NASNet-A (4 @ 1056), the mobile one (cells 4, filters 44, stem 32, image 224, beyond 0), has
// 5,289,978.
struct NasNet {
  std::int64_t cells = 6;      // normal cells in each of three groups
  std::int64_t filters = 168;  // of the first group
  std::int64_t stem = 96;      // channels of the first convolution
  std::int64_t image = 331;    // pixels of a side
  std::int64_t classes = 1000;
  // What the first cell behind a reduction reads beside its result: the last cell but one before the
  // reduction, as the large model, or the reduction's input, as the mobile one.
  enum class Reach : std::uint8_t { kReduction, kBeyond } reach = Reach::kBeyond;
};

// AmoebaNet-D (Real et al., arXiv 1802.01548) with the cells that GPipe (arXiv 1811.06965) trains: a stem of
// a convolution and two reduction cells, then three groups of layers / 3 normal cells, a reduction cell that
// doubles the channels between. The 7 × 1 and 3 × 3 convolutions stand between 1 × 1 ones to a quarter of the
// channels and back.
//
// The usual one is AmoebaNet-D (18, 208), of which GPipe tells 82 million parameters.
struct AmoebaNet {
  std::int64_t layers = 18;    // normal cells, a multiple of 3
  std::int64_t filters = 208;  // a quarter of them in the stem
  std::int64_t image = 224;    // pixels of a side
  std::int64_t classes = 1000;
};

// Throw InputError where a size is below 1, the image is too small (AmoebaNet: no multiple of 32), filters
// are no multiple of 4 (AmoebaNet: of 8), or AmoebaNet's layers none of 3.
Graph build(const NasNet& model);
Graph build(const AmoebaNet& model);

}  // namespace espalier
