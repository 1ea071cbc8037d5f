#pragma once

// Times and memory of whole forward and backward passes of a model, in graph order: hot loops flatter
// (docs/cost-model.md). Includes libtorch; runtime/ only.

#include <cstdint>
#include <vector>

#include "espalier/runtime/data.h"
#include "espalier/runtime/operator_memory.h"
#include "espalier/runtime/session.h"
#include "espalier/runtime/stage_runner.h"
#include "espalier/runtime/torch_device.h"

namespace espalier {

// What one pass took, in nanoseconds.
struct PassTimes {
  double forward = 0;
  double backward = 0;
  std::vector<double> forward_of;   // by operator; empty without timestamps
  std::vector<double> backward_of;  // by operator
};

// The two halves of one backward, by operator, in nanoseconds.
struct HalfTimes {
  std::vector<double> input, weight;
};

class PassProfiler {
 public:
  // All must outlive it.
  PassProfiler(const Program& program, Session& session, const DataSource& data);

  // One forward and backward of one micro-batch; fresh samples each time.
  PassTimes plain();
  // With the times of the operators, which are then too long by what the timestamps take.
  PassTimes stamped();
  // The same pass with its backward in two halves.
  HalfTimes stamped_halves();

  // As in a pipeline, where a device holds several micro-batches: before each backward the next micro-batch's
  // forward has run, so that neither finds in the caches what the other just left there. One for each of
  // `passes` micro-batches.
  std::vector<PassTimes> in_flight(int passes);

  // By operator. One pass, counting allocations.
  std::vector<OperatorMemory> memory();

  // One forward after the thread has slept for so long: what a step's first action finds is cold.
  // Nanoseconds.
  double forward_after(Duration wait);

  // Cuts the model into that many stages, or fewer (even_stages). Returns how many.
  std::size_t cut_into(std::size_t count);

  // in_flight of each of those stages by itself, as a device of a pipeline would run it; what stages receive
  // are copies of what they once got. The i-th is the sum of all stages' i-th passes.
  std::vector<PassTimes> stages_in_flight(int passes);

  Holding& holding() { return holding_; }
  const DeviceClock& clock() const { return clock_; }

 private:
  struct CutStage {
    StageRunner::Interface interface;
    StageRunner runner;
    std::vector<at::Tensor> received, gradients;  // as in its interface; gradients of what it sends
  };

  RandomKey next_pass(std::uint64_t micro_batch);
  std::vector<at::Tensor> inputs(const StageRunner& runner);
  std::vector<PassTimes> in_flight(StageRunner& runner, const std::vector<at::Tensor>& received,
                                   const std::vector<at::Tensor>& gradients, int passes);

  const Program& program_;
  Session& session_;
  const DataSource& data_;
  DeviceClock clock_;
  Holding& holding_;
  StageRunner runner_;
  std::vector<CutStage> stages_;
  std::uint64_t pass_ = 0;
};

}  // namespace espalier
