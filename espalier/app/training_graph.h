#pragma once

// A training graph from a forward graph alone: what backward operators read follows the analytic model.

#include "espalier/graph/graph.h"

namespace espalier {

// expand_backward with the tensors that an accelerator keeps (cost/kept_tensors.h).
Graph training_graph(const Graph& forward);

}  // namespace espalier
