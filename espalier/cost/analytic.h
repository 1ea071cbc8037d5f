#pragma once

// The analytic cost model: what an operator takes on a device nobody measured.
//
// time = launch overhead + max(work / (peak · efficiency), bytes moved / bandwidth), a roofline in which
// efficiency rises with the size of the work: a kernel runs as tiles over the device's multiprocessors, in
// whole waves, so small work leaves units idle (Williams, Waterman, Patterson, CACM'09 for the roofline;
// docs/cost-model.md has our constants and what they were checked against). Only + − × ÷ √ are used, so every
// compiler gives the same bytes.

#include "espalier/cost/cost_table.h"

namespace espalier {

// Work of one operator at a batch, from its target and the shapes of its tensors.
struct Work {
  double forward_flops = 0;
  double input_gradient_flops = 0;
  double weight_gradient_flops = 0;
  double bytes_read = 0;
  double bytes_written = 0;
  double output_tiles = 1;  // independent pieces: what can be spread over multiprocessors
  bool matrix = false;      // uses matrix units (and half-precision peak where the type is half)
};
Work operator_work(const Graph& graph, OperatorId op, BatchSize batch);

// A cell of origin kAnalytic. What is saved for backward follows the operator's kind (docs/cost-model.md).
OperatorCost analytic_cost(const Graph& graph, OperatorId op, const DeviceKind& kind, BatchSize batch);

}  // namespace espalier
