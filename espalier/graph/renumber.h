#pragma once

// A graph with its operators in another legal order: what stands together there is one run of operators.

#include <span>

#include "espalier/graph/graph.h"

namespace espalier {

// Operator i of the result is operator order[i] of `graph`. Tensors without a producer come first, in their
// old order, then outputs by producer; storages are numbered anew. Names, parameters, classes and colocation
// stay, so a cost table of `graph` holds for it too. `order` names every operator once, each behind its
// predecessors; where it does not, InternalError. O(parts · log parts).
Graph renumbered(const Graph& graph, std::span<const OperatorId> order);

}  // namespace espalier
