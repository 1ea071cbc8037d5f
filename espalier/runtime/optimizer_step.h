#pragma once

// What the optimizer does to a parameter in a step. Includes libtorch; runtime/ only.

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "espalier/base/ids.h"
#include "espalier/plan/training.h"

namespace espalier {

struct Variable {
  ParameterId id;
  at::Tensor value;               // a leaf; gradients accumulate in value.grad()
  std::vector<at::Tensor> state;  // of the optimizer; empty before the first update
  enum class Decay : std::uint8_t { kAsOptimizer, kNone } decay = Decay::kAsOptimizer;
};

// One step of the optimizer on every parameter that has a gradient, as torch.optim does it (to a rounding:
// see adam_kernel.cc); `step` counts from 1. Gradients are then dropped. Returns the sum of squares of each
// one's gradient, 0 where there is none.
std::vector<double> update(const Optimizer& optimizer, std::uint64_t step, std::vector<Variable>& parameters);

// The sum of squares of its gradient, with the bits that update returns; 0 where there is none.
double squares_of_gradient(const Variable& variable);

// The same as update without the step.
std::vector<double> drop_gradients(std::vector<Variable>& parameters);

}  // namespace espalier
