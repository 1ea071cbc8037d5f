#pragma once

// One device of a run that trains: carries out its list of actions. Runs in one thread, and its sums of
// gradients in another. Includes libtorch; runtime/ only.
//
// Its parts beside those of DeviceLoop, which waits, posts and gives slots back: the stages' arithmetic
// (StageRunner), and what passes between its own stages (LocalTensors, LocalGradients).

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "espalier/runtime/device_loop.h"
#include "espalier/runtime/executor.h"
#include "espalier/runtime/local_crossings.h"
#include "espalier/runtime/stage_runner.h"

namespace espalier {

class DeviceWorker final : public DeviceLoop {
 public:
  // All must outlive it.
  DeviceWorker(const Job& job, Session& session, const DataSource& data, Transport& transport,
               const ExecutorOptions& options, DeviceId device);
  ~DeviceWorker() override { end_sums(); }

  // A step is begin(), run() of all actions, finish().
  void begin();
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
    const Traffic* traffic = nullptr;  // reads and sends as in the runner's interface
  };

  StageHere make_stage(const Traffic& traffic);
  StageHere& stage(StageId id);
  bool owns(StageId stage, ParameterId parameter) const;

  void perform(const Action& action) override;
  std::function<void()> sum_of(const Action& action) override;
  void summed(const Action& sum) override;
  void dispatch(const Action& action);
  void forward(const Action& action);
  std::vector<at::Tensor> evaluate(const Action& action, StageHere& here,
                                   const std::vector<at::Tensor>& inputs,
                                   const std::vector<at::Tensor>& received);
  std::vector<at::Tensor> receive(const StageHere& here, const Share& share);
  std::vector<at::Tensor> read_inputs(const Action& action, const StageHere& here) const;
  // For tensors that leave a stage: a copy where the memory is one that the stage writes again, a
  // parameter's, a buffer's or a parameter's gradient's.
  static at::Tensor not_written_again(const StageHere& here, const at::Tensor& tensor);
  void pass_on(const StageHere& here, const Share& share, const std::vector<at::Tensor>& sent);
  void recompute(const Action& action);
  void backward(const Action& action);  // B or I
  void weight_half(const Action& action);
  std::vector<at::Tensor> gradients_of_sent(const StageHere& here, const Share& share);
  void hand_back(const StageHere& here, const Share& share, const std::vector<at::Tensor>& gradients);
  void hand_back(const StageHere& here, const Share& share, std::uint32_t crossing,
                 const at::Tensor& gradient);
  // What a gradient's message carries: the sum of the readers here, without what a message before it carries.
  at::Tensor returned(const Message& message) const;
  // Whose gradients a sum writes here.
  std::vector<Holding*> summed_holdings(const Action& sum);
  void sum_gradients(const Action& action);  // in the thread of sums
  void apply_update(const Action& action);
  RandomKey key_of(const Action& action) const;

  const Job& job_;
  Session& session_;
  const DataSource& data_;
  Transport& transport_;
  const ExecutorOptions& options_;
  StepHooks no_hooks_;
  StepHooks& hooks_;
  std::vector<StageHere> stages_;

  // Of the running step.
  LocalTensors tensors_;
  LocalGradients gradients_;
  std::vector<std::pair<std::uint32_t, at::Tensor>> losses_;  // by micro-batch; read when the step ends
  StepOutcome outcome_;
};

}  // namespace espalier
