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

  // One forward after the thread has slept for so long: what a step's first action finds is cold.
  // Nanoseconds.
  double forward_after(Duration wait);

  // Cuts the model into `count` stages of about equal length, fewer where colocation groups are in the way.
  // Returns how many.
  std::size_t cut_into(std::size_t count);

  // in_flight of each of those stages by itself, as a device of a pipeline would run it; what stages receive
  // are copies of what they once got. The i-th is the sum of all stages' i-th passes.
  std::vector<PassTimes> stages_in_flight(int passes);

  Holding& holding() { return holding_; }

 private:
  struct Piece {  // a stage
    StageRunner::Interface interface;
    StageRunner runner;
    std::vector<at::Tensor> received, gradients;  // as in its interface; gradients of what it sends
  };

  std::vector<at::Tensor> inputs(const StageRunner& runner);
  std::vector<PassTimes> in_flight(StageRunner& runner, const std::vector<at::Tensor>& received,
                                   const std::vector<at::Tensor>& gradients, int passes);

  const Program& program_;
  Session& session_;
  const DataSource& data_;
  Holding& holding_;
  StageRunner runner_;
  std::vector<Piece> pieces_;
  std::uint64_t pass_ = 0;
};

// Some milliseconds of work that goes through more memory than a core's own caches hold.
std::function<void()> some_milliseconds();

}  // namespace espalier
