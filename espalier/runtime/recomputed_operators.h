#pragma once

// Which operators of a stage are recomputed, and which tensors they write. Includes no libtorch.

#include <vector>

#include "espalier/graph/graph.h"

namespace espalier {

// By TensorId: one of the operators writes it or an alias.
std::vector<bool> mutated_by(const Graph& graph, const std::vector<OperatorId>& operators);

// By position among `operators`, of which those of `recompute` may be; both ascending.
//
// Operators of one colocation number may share a memory that one of them writes. Where that memory is passed
// on as an activation they must see one tensor, not copies: none of what is between them is recomputed, so
// they are in one segment. (BatchNorm's statistics are read and written where they lie, in the holding.)
std::vector<bool> recomputed_operators(const Graph& graph, const std::vector<OperatorId>& operators,
                                       const std::vector<OperatorId>& recompute);

}  // namespace espalier
