#pragma once

// Where a graph may be cut in its own order, and what of it may be computed twice: what whoever makes stages
// asks of a graph.

#include <optional>
#include <vector>

#include "espalier/base/units.h"
#include "espalier/graph/graph.h"
#include "espalier/planners/operator_set.h"

namespace espalier {

// By gap, 0 … operators: the bytes of one sample that cross from operators below it to the gap's and later
// ones, each tensor once; nothing where operators that belong together stand on both sides. O(operators).
std::vector<std::optional<Bytes>> crossing_bytes(const Graph& graph);

// Every operator that writes none of its inputs: what may be recomputed.
OperatorSet repeatable_operators(const Graph& graph);

}  // namespace espalier
