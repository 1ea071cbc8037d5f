#pragma once

// The analytic cost model: what an operator takes on a device nobody measured.
//
// time = launch overhead + max(work / (peak · efficiency), bytes moved / (bandwidth · efficiency)), a
// roofline in which efficiency rises with the size of the work: a matrix product runs as tiles over the
// device's multiprocessors, in whole waves, so small work leaves units idle (Williams, Waterman, Patterson,
// CACM'09 for the roofline; docs/cost-model.md has our constants). Only + − × ÷ √ are used, so every compiler
// gives the same bytes.

#include "espalier/cost/cost_table.h"

namespace espalier {

// Work of one operator at a batch, from its target and the shapes of its tensors. What an operator's
// parameters need falls to the weight gradient, what its other inputs need to the input gradient, whether or
// not they require one: a cell serves its whole class (see OperatorCosts).
struct Work {
  double forward_flops = 0;
  double input_gradient_flops = 0;
  double weight_gradient_flops = 0;
  double bytes_read = 0;
  double bytes_written = 0;
  double input_gradient_bytes = 0;  // read and written
  double weight_gradient_bytes = 0;
  double output_tiles = 1;   // independent pieces: what can be spread over multiprocessors
  double tile_flops = 0;     // of one piece, padding included (matrix work)
  double tile_splits = 1;    // into how many parts one piece may be split along its inner dimension
  bool matrix = false;       // uses matrix units (and half-precision peak where the type is half)
  DType type = DType::kF32;  // of its first floating-point tensor: which rate of the matrix units counts
  bool free = false;         // no kernel at all: a view, a size
};
Work operator_work(const Graph& graph, OperatorId op, BatchSize batch);

// Which halves of its backward an operator of a forward graph has: some input, apart from parameters,
// requires a gradient; some parameter among its inputs is trained. None if no output requires one.
struct BackwardHalves {
  bool input = false, weights = false;
};
BackwardHalves backward_halves(const Graph& graph, const Operator& op);

// A cell of origin kAnalytic. What is saved for backward follows the operator's kind (docs/cost-model.md).
// `precision` says whether matrix work on f32 numbers may use TF32; bf16 shows in the graph (with_precision).
OperatorCost analytic_cost(const Graph& graph, OperatorId op, const DeviceKind& kind, BatchSize batch,
                           Precision precision = Precision::kF32);

}  // namespace espalier
