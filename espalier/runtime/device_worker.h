#pragma once

// One device of a run: carries out its list of actions. Runs in one thread. Includes libtorch; runtime/ only.
//
// Nothing but compute waits. After each action, first come the sends whose turn it is, then the receives
// whose slot became free; both in channel order (docs/semantics.md, time; the slots are those of trace.h).
// Its parts: what it knows of the job (DeviceView), the receiving and the sending ends of its channels
// (Inbox, Outbox), what passes between its own stages (LocalTensors, LocalGradients), and what it measures
// (StepRecorder).

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "espalier/runtime/device_view.h"
#include "espalier/runtime/executor.h"
#include "espalier/runtime/inbox.h"
#include "espalier/runtime/local_crossings.h"
#include "espalier/runtime/memory_meter.h"
#include "espalier/runtime/outbox.h"
#include "espalier/runtime/stage_runner.h"
#include "espalier/runtime/step_recorder.h"

namespace espalier {

class DeviceWorker {
 public:
  // All must outlive it.
  DeviceWorker(const Job& job, Session& session, const DataSource& data, Transport& transport,
               const ExecutorOptions& options, DeviceId device);

  // A step is begin(), all actions of the device's list in their order, finish(). run() carries out a part of
  // the list: a step may stop before its updates, when all gradients are final.
  enum class Part : std::uint8_t { kAll, kAllButUpdates, kUpdates };
  void begin();
  void run(Part part);
  // Waits until all its sends are complete.
  StepOutcome finish();

  // Each gradient's sum of squares, of the parameters owned here; before the updates.
  SquaresOfParameters squares() const;
  // Multiplies all gradients here by a factor of at most 1; before the updates.
  void scale_gradients(double factor);

 private:
  struct StageHere {
    StageId id;
    Holding* holding = nullptr;
    std::unique_ptr<StageRunner> runner;
    std::vector<std::uint32_t> reads, sends;  // crossings with a tensor, as in the runner's interface
    std::vector<std::uint32_t> token_reads, token_sends;
  };

  StageHere make_stage(StageId id);
  StageHere& stage(StageId id);
  bool owns(StageId stage, ParameterId parameter) const;

  void carry_out(const Action& action);
  void dispatch(const Action& action);
  void forward(const Action& action);
  std::vector<at::Tensor> evaluate(const Action& action, StageHere& here,
                                   const std::vector<at::Tensor>& inputs,
                                   const std::vector<at::Tensor>& received);
  std::vector<at::Tensor> receive(const StageHere& here, std::uint32_t micro_batch);
  std::vector<at::Tensor> read_inputs(const Action& action, const StageHere& here) const;
  // For tensors that leave a stage: a copy where the memory is one that the stage writes again, a
  // parameter's, a buffer's or a parameter's gradient's.
  static at::Tensor not_written_again(const StageHere& here, const at::Tensor& tensor);
  void pass_on(const StageHere& here, std::uint32_t micro_batch, const std::vector<at::Tensor>& sent);
  void recompute(const Action& action);
  void backward(const Action& action);
  std::vector<at::Tensor> gradients_of_sent(const StageHere& here, std::uint32_t micro_batch);
  void hand_back(const StageHere& here, std::uint32_t micro_batch, const std::vector<at::Tensor>& gradients);
  void sum_gradients(const Action& action);
  void apply_update(const Action& action);
  void release(const Action& action);
  RandomKey key_of(const Action& action) const;

  const Job& job_;
  Session& session_;
  const DataSource& data_;
  Transport& transport_;
  const ExecutorOptions& options_;
  StepHooks no_hooks_;
  StepHooks& hooks_;
  DeviceView view_;
  MemoryMeter meter_;
  StepRecorder recorder_;
  Inbox inbox_;
  Outbox outbox_;
  std::vector<StageHere> stages_;

  // Of the running step.
  LocalTensors tensors_;
  LocalGradients gradients_;
  std::set<Action> done_;
  std::vector<std::pair<std::uint32_t, at::Tensor>> losses_;  // by micro-batch; read when the step ends
  StepOutcome outcome_;
};

}  // namespace espalier
