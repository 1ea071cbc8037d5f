#pragma once

// How a model is trained, as a value: batch, optimizer, learning-rate schedule, clipping, parameter groups. A
// plan file carries it; the runtime obeys it.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/base/units.h"
#include "espalier/cost/cost_table.h"
#include "espalier/graph/size_expr.h"

namespace espalier {

// How the learning rate moves over the steps of a run. The formulas are those of the transformers package
// (get_constant_schedule_with_warmup, get_linear_…, get_cosine_…); `warm_up` and `steps` count steps.
struct LearningRateSchedule {
  enum class Shape : std::uint8_t { kConstant, kLinear, kCosine } shape = Shape::kConstant;
  std::uint64_t warm_up = 0;  // steps over which the rate rises from 0 in equal parts
  std::uint64_t steps = 0;    // of the whole run: linear and cosine reach 0 there; unused by constant
  friend bool operator==(const LearningRateSchedule&, const LearningRateSchedule&) = default;
};
std::string_view to_text(LearningRateSchedule::Shape shape);  // "constant", "linear", "cosine"
std::optional<LearningRateSchedule::Shape> parse_schedule_shape(std::string_view text);

// What the learning rate is multiplied by in a step, counted from 0: between 0 and 1. With a warm-up the
// first step has 0, as in the transformers package.
double learning_rate_factor(const LearningRateSchedule& schedule, std::uint64_t step);

struct Optimizer {
  OptimizerKind kind = OptimizerKind::kAdam;
  double learning_rate = 1e-3;
  double momentum = 0;  // SGD
  double beta1 = 0.9;   // Adam, AdamW
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  LearningRateSchedule schedule = {};
  // Gradients are scaled down where the norm of all of them together is above this
  // (torch.nn.utils.clip_grad_norm_).
  std::optional<double> clip_norm = {};
  // Parameters whose name matches one of these patterns ('*' stands for any characters) have no weight decay.
  std::vector<std::string> no_decay = {};
  // Keeps its state and a copy of the parameters in f32, where those have two bytes a number (precision.h).
  bool master_weights = false;
  friend bool operator==(const Optimizer&, const Optimizer&) = default;
};

// Bytes that the optimizer keeps for trainable parameters of that many bytes: Adam and AdamW two moments, SGD
// one with momentum, else none. With master weights each of them twice as large, and a copy of the
// parameters.
Bytes optimizer_state(const Optimizer& optimizer, Bytes parameters);

// What the update of one parameter needs beside all that is held: parameters are updated one after the other,
// so a device needs the most of any of its own. The norm of a gradient is taken in double precision, of a
// copy and its squares: 16 bytes a number, more than any optimizer's own temporaries. On a CPU, parameters in
// f32 take one pass without any; SGD with weight decay needs one more gradient. Nothing in a profile of
// bytes, whose numbers nobody knows.
Bytes update_workspace(const Optimizer& optimizer, const Parameter& parameter, const DeviceKind& kind);

struct Training {
  BatchSize batch;                       // samples of one step
  std::vector<BatchSize> micro_batches;  // sizes a planner may choose, ascending; each divides the batch
  Optimizer optimizer;
  // Parameters whose name matches one of these patterns stay as they are: they get no gradient. The model is
  // read with them, so graph and costs know it.
  std::vector<std::string> frozen = {};
  // Sizes that an ONNX file leaves open, by their names there. The model is read with these, too.
  std::map<std::string, SizeExpr> dims = {};
  Precision precision = Precision::kF32;  // that the plan supposes; a run computes in the model's types

  // The whole batch, where any size goes: what a placement runs by.
  BatchSize largest_micro_batch() const { return micro_batches.empty() ? batch : micro_batches.back(); }
  friend bool operator==(const Training&, const Training&) = default;
};

}  // namespace espalier
