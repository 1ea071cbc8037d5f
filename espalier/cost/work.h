#pragma once

// Work of operators as a structure weighs it (graph/structure.h).

#include <vector>

#include "espalier/cost/cost_table.h"
#include "espalier/graph/structure.h"

namespace espalier {

// What each operator asks of any device, forward and backward: the larger of its floating-point operations
// and ten times the bytes that it moves, which is about what devices can do in the time of one byte. What a
// device adds for each call does not count: a scalar is no work, however long its kernel takes to start. A
// published profile knows no sizes; there it is the time on the first kind of device.
std::vector<Weight> work_weights(const Graph& graph, const OperatorCosts& costs, BatchSize batch);

}  // namespace espalier
