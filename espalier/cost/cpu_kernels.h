#pragma once

// What an operator takes on a CPU beside the roofline of analytic.h: more kernels than one, and random
// numbers.

#include "espalier/cost/cost_table.h"
#include "espalier/cost/operator_family.h"
#include "espalier/graph/graph.h"

namespace espalier {

inline bool is_cpu(const DeviceKind& kind) {
  return kind.name == "cpu";
}

// Adds to the times of `cost`, each of which counts one launch where it is not zero:
//  - launches of further kernels: a convolution reorders its operands and its result for oneDNN; attention
//  with
//    dropout is PyTorch's plain form, a product, a softmax and a product with scaling and masks between them;
//  - 10 ns for each random number, which PyTorch draws one after the other.
// Factors from profiles of the examples by torch 2.13 (docs/cost-model.md). O(1).
void add_cpu_kernels(const Graph& graph, const Operator& op, const OperatorFamily& family,
                     const DeviceKind& kind, BatchSize batch, OperatorCost& cost);

}  // namespace espalier
