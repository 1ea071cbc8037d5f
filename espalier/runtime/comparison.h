#pragma once

// Two runs of one model side by side: which values are compared, by what measure, and how far apart they may
// be (docs/semantics.md, exactness). Runs nothing itself. Includes libtorch; runtime/ only.

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "espalier/runtime/planned_job.h"
#include "espalier/runtime/runtime.h"

namespace espalier {

// By name, in host memory.
using TensorsByName = std::map<std::string, at::Tensor>;

struct MeasuredRun {
  double loss = 0, norm = 0;  // of the first step
  TensorsByName gradients;    // of the first step; zeros where none flowed
  TensorsByName after_first;  // parameters and persistent buffers
  TensorsByName after_last;
};

// What is compared, and how; all must outlive it.
struct ComparedModel {
  const Graph& graph;
  const PlannedJob& planned;
  const Optimizer& optimizer;
  const TensorsByName& initial;  // trainable parameters as training starts
  double tolerance = 0;
  std::uint64_t steps = 1;
};

// The plan has no replicas and one size of micro-batches, nothing that needs a gradient is read in two
// segments of backward, and each stage adds to its parameters' gradients in the order of its micro-batches (a
// list may have a B before the W of an earlier one): then no sum depends on the plan, so neither does a bit
// of the result. Of a placement with one micro-batch, a parameter may be read twice on one device, in two
// fragments: their gradients meet in its one copy, and a sum of two has no order.
bool is_bit_equality_due(const Graph& graph, const PlannedJob& planned);

// 1e-5 in single precision. 2^-29 of that in double, which is as many units in the last place; in f16 and
// bf16, where that would be most of a number, four units. Of the types that gradients flow through the one
// with the fewest digits counts.
double default_tolerance(const Graph& graph);

// One value in two runs.
struct Distance {
  Difference::What what = Difference::What::kGradient;
  std::string name;
  std::string op;  // an operator that reads it
  bool same_bits = false;
  double measure = 0;
  double limit = 0;  // the largest measure that counts as equal
};

// Loss, norm, gradients as backward meets them, buffers, parameters after the first step and after the last:
// what a model makes of a rounding error grows from step to step, and a wrong update shows at once. Which
// values there are depends on model, plan and reference alone.
std::vector<Distance> distances(const ComparedModel& model, const MeasuredRun& run,
                                const MeasuredRun& reference);

// Moves every element other than 0 by one unit in the last place, up or down as `key` says. The tensor is of
// floating point or complex numbers.
void move_by_last_place(const at::Tensor& tensor, std::uint64_t key);

}  // namespace espalier
