#pragma once

// A graph neural network trained in chunks, as GNNPipe does it (arXiv 2308.10087): layers of graph
// convolution (Kipf and Welling, arXiv 1609.02907) whose vertices are cut into chunks that follow each other
// through the layers. A chunk reads its neighbours of earlier chunks, and its own, as this step computes
// them, those of later chunks as the last step left them: inputs that need no gradient. So chunk c of layer l
// waits for chunks 0…c of layer l - 1, which is no series-parallel order.
//
//   parameters = F·h + h + (layers - 1)·(h² + h) + h·C + C   F features, h hidden, C classes
//   flops at batch b, forward = 2·b·chunks·vertices·(F·h + (layers - 1)·h² + h·C)
//
// Batch: graphs of this size side by side. Sizes are ours.

#include "espalier/graph/graph.h"

namespace espalier {

struct ChunkedGraphNetwork {
  std::int64_t chunks = 8;
  std::int64_t layers = 8;
  std::int64_t vertices = 4096;  // of a chunk
  std::int64_t edges = 65'536;   // that end in a chunk
  std::int64_t features = 128;   // of a vertex
  std::int64_t hidden = 256;
  std::int64_t classes = 40;
};

// Throws InputError where a size is below 1.
Graph build(const ChunkedGraphNetwork& model);

}  // namespace espalier
