#pragma once

// Times and memory of every operator in whole forward and backward passes of a model, in graph order: hot
// loops flatter (docs/cost-model.md). Includes libtorch; runtime/ only.
//
// Forward: a timestamp after each operator. Backward: nodes that an operator added to the autograd graph get
// a hook that notes when they start; what lies between two starts belongs to the first, the engine's own work
// and the accumulation of gradients included. Sums are then scaled to passes without timestamps.

#include <cstdint>
#include <functional>
#include <vector>

#include "espalier/cost/cost_table.h"
#include "espalier/runtime/data.h"
#include "espalier/runtime/session.h"
#include "espalier/runtime/stage_runner.h"

namespace espalier {

// What one pass took, in nanoseconds.
struct PassTimes {
  double forward = 0;
  double backward = 0;
  std::vector<double> forward_of;   // by operator; empty without timestamps
  std::vector<double> backward_of;  // by operator
};

struct OperatorMemory {
  std::vector<SavedTensor> saved;
  Bytes private_bytes;
  Bytes workspace;
};

class PassProfiler {
 public:
  PassProfiler(const Program& program, Session& session, const DataSource& data);

  // One forward and backward of one micro-batch; fresh samples each time.
  PassTimes plain();
  PassTimes stamped();

  // As in a pipeline, where a device holds several micro-batches: before each backward the next micro-batch's
  // forward has run, so that neither finds in the caches what the other just left there. One for each of
  // `passes` micro-batches.
  std::vector<PassTimes> in_flight(int passes);

  // By operator. One pass, counting allocations.
  std::vector<OperatorMemory> memory();

  // What an action (F or B of a stage) takes beside its operators: the model as one stage against the model
  // cut into `pieces` stages, divided by the actions that the cuts add. Nanoseconds, not below 0.
  double action_overhead(std::size_t pieces);

  Holding& holding() { return holding_; }

 private:
  std::vector<at::Tensor> inputs(const StageRunner& runner);

  const Program& program_;
  Session& session_;
  const DataSource& data_;
  Holding& holding_;
  StageRunner runner_;
  std::uint64_t pass_ = 0;
};

// About 1 ms of matrix products that stay in the cache: how fast the core is now. Nanoseconds.
double speed_probe();

// Some milliseconds of work that goes through more memory than a core's own caches hold.
std::function<void()> some_milliseconds();

}  // namespace espalier
