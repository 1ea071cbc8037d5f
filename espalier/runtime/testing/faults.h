#pragma once

// Mistakes that a pipelined trainer can make, planted one at a time: `verify` must catch each and name where
// it shows. Tests only. Includes libtorch.

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "espalier/runtime/executor.h"
#include "espalier/runtime/step_hooks.h"

namespace espalier::testing {

enum class Fault : std::uint8_t {
  kLostMicroBatch,      // the last micro-batch has no part in the gradients
  kUntied,              // copies of a tied parameter do not add their gradients up
  kWrongSeed,           // random operators of one stage draw from another stream
  kStaleReceive,        // a stage reads the micro-batch before
  kDoubleBufferUpdate,  // one stage's BatchNorm statistics are moved twice
  kUnscaledLoss,        // the sum over micro-batches instead of the mean
  kNoAllReduce,         // replicas keep their own gradients
  kWrongDataOrder,      // one stage reads the samples of another micro-batch
  kNormOfCopies,        // the gradient norm counts each copy of a tied parameter
  kSkippedUpdate,       // one stage does not update its parameters
  kLostFragment,        // one fragment adds nothing to the gradients that its device holds once for several
};

class PlantedFault final : public StepHooks {
 public:
  // `stage`: where, for faults of one stage.
  PlantedFault(Fault fault, std::size_t stage, const Graph& graph)
      : fault_(fault), stage_(stage), graph_(graph) {}

  void around(const Action& action, Holding* holding, const std::function<void()>& run) override {
    if (fault_ == Fault::kUntied && action.kind == ActionKind::kTieSum) return;
    if (fault_ == Fault::kNoAllReduce && action.kind == ActionKind::kAllReduce) return;
    const bool twice = is(Fault::kDoubleBufferUpdate, action) && action.kind == ActionKind::kForward;
    const bool skipped = is(Fault::kSkippedUpdate, action) && action.kind == ActionKind::kUpdate;
    const std::vector<at::Tensor> buffers = twice ? values_of(holding->buffers) : std::vector<at::Tensor>();
    const std::vector<at::Tensor> parameters =
        skipped ? values_of(holding->parameters) : std::vector<at::Tensor>();
    const bool lost = is(Fault::kLostFragment, action) && action.kind == ActionKind::kBackward;
    const std::vector<at::Tensor> gradients =
        lost ? gradients_of(holding->shared) : std::vector<at::Tensor>();
    run();
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      holding->shared[i].value.mutable_grad() = gradients[i];
    }
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const at::Tensor buffer = holding->buffers[i].value.variable_data();  // autograd does not see the write
      buffer.add_(buffer.sub(buffers[i]));
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      holding->parameters[i].value.detach().copy_(parameters[i]);
    }
  }

  // The neighbour of an even number of micro-batches.
  std::uint32_t samples_of(const Action& forward) override {
    return is(Fault::kWrongDataOrder, forward) ? forward.micro_batch ^ 1U : forward.micro_batch;
  }

  void received(const Action& action, std::vector<at::Tensor>& tensors) override {
    if (!is(Fault::kStaleReceive, action)) return;
    const std::lock_guard guard(lock_);
    if (action.micro_batch == 0) {
      before_ = tensors;  // there is none before it
    } else {
      std::swap(before_, tensors);
    }
  }

  RandomKey key(const Action& action, const RandomKey& key) override {
    return {is(Fault::kWrongSeed, action) ? key.seed + 1 : key.seed, key.step, key.micro_batch};
  }

  double loss_scale(const Action& action, double scale) override {
    if (fault_ == Fault::kUnscaledLoss) return 1;
    const auto micro_batches = static_cast<std::uint32_t>(std::lround(1 / scale));
    return fault_ == Fault::kLostMicroBatch && action.micro_batch + 1 == micro_batches ? 0 : scale;
  }

  void finished(StepOutcome& outcome) override {
    if (fault_ != Fault::kNormOfCopies) return;
    const SquaresOfParameters once = outcome.squares;
    for (const auto& [id, squares] : once) {
      if (graph_.parameter(id).names.size() > 1) outcome.squares.emplace_back(id, squares);
    }
  }

 private:
  bool is(Fault fault, const Action& action) const { return fault == fault_ && action.target() == stage_; }
  static std::vector<at::Tensor> values_of(const std::vector<Variable>& variables) {
    std::vector<at::Tensor> values;
    for (const Variable& variable : variables) values.push_back(variable.value.detach().clone());
    return values;
  }
  static std::vector<at::Tensor> gradients_of(const std::vector<Variable>& variables) {
    std::vector<at::Tensor> gradients;
    for (const Variable& variable : variables) {
      const at::Tensor& gradient = variable.value.grad();
      gradients.push_back(gradient.defined() ? gradient.clone() : at::Tensor());
    }
    return gradients;
  }

  Fault fault_;
  std::size_t stage_;
  const Graph& graph_;
  std::mutex lock_;
  std::vector<at::Tensor> before_;  // what the stage received last
};

}  // namespace espalier::testing
