#pragma once

// What each operator's backward reads, from costs: the bridge from a cost table to expand_backward.

#include <vector>

#include "espalier/cost/cost_table.h"
#include "espalier/graph/expand_backward.h"

namespace espalier {

// By operator: the tensors that its cell on that kind names as saved. `costs` are of `graph`, a forward
// graph. Throws InputError where a cell names a tensor that its operator lacks.
std::vector<KeptTensors> kept_tensors(const Graph& graph, const OperatorCosts& costs, KindId kind);

}  // namespace espalier
