// The optimizers are those of torch.optim, operation by operation; Adam on float32 in one pass
// (adam_kernel.h). A complex number counts as two real ones, as there: real and imaginary part have moments
// of their own, and a norm adds |g|² up.

#include "espalier/runtime/optimizer_step.h"

#include <ATen/core/grad_mode.h>

#include <cmath>

#include "espalier/runtime/adam_kernel.h"

namespace espalier {
namespace {

void sgd(const Optimizer& optimizer, Variable& variable, at::Tensor gradient) {
  if (optimizer.weight_decay != 0) gradient = gradient.add(variable.value, optimizer.weight_decay);
  if (optimizer.momentum != 0) {
    if (variable.state.empty()) {
      variable.state.push_back(gradient.clone());
    } else {
      variable.state[0].mul_(optimizer.momentum).add_(gradient);
    }
    gradient = variable.state[0];
  }
  variable.value.add_(gradient, -optimizer.learning_rate);
}

void make_moments(Variable& variable) {
  if (!variable.state.empty()) return;
  for (int i = 0; i < 2; ++i) {
    variable.state.push_back(at::zeros_like(variable.value, {}, at::MemoryFormat::Preserve));
  }
}

// Complex numbers as pairs of real ones in the same memory.
at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

// What Adam reads and writes, all real and with equal strides.
struct Moments {
  at::Tensor value, gradient, mean, square;
};

// Of any type on any device.
void adam(const Optimizer& optimizer, std::uint64_t step, const Moments& moments) {
  const auto& [value, given, mean, square] = moments;
  at::Tensor gradient = given;
  if (optimizer.kind == OptimizerKind::kAdamW) {
    value.mul_(1 - optimizer.learning_rate * optimizer.weight_decay);
  } else if (optimizer.weight_decay != 0) {
    gradient = gradient.add(value, optimizer.weight_decay);
  }
  mean.lerp_(gradient, 1 - optimizer.beta1);
  square.mul_(optimizer.beta2).addcmul_(gradient, gradient, 1 - optimizer.beta2);
  const double n = static_cast<double>(step);
  const double correction1 = 1 - std::pow(optimizer.beta1, n);
  const double correction2 = std::sqrt(1 - std::pow(optimizer.beta2, n));
  const at::Tensor scale = square.sqrt().div_(correction2).add_(optimizer.epsilon);
  value.addcdiv_(mean, scale, -(optimizer.learning_rate / correction1));
}

AdamStep adam_numbers(const Optimizer& optimizer, std::uint64_t step) {
  const bool decoupled = optimizer.kind == OptimizerKind::kAdamW;
  const double n = static_cast<double>(step);
  const double step_size = optimizer.learning_rate / (1 - std::pow(optimizer.beta1, n));
  const auto rounded = [](double value) { return static_cast<float>(value); };
  return {.shrink = rounded(decoupled ? 1 - optimizer.learning_rate * optimizer.weight_decay : 1),
          .decay = rounded(decoupled ? 0 : optimizer.weight_decay),
          .keep_square = rounded(optimizer.beta2),
          .new_mean = rounded(1 - optimizer.beta1),
          .new_square = rounded(1 - optimizer.beta2),
          .correction = rounded(std::sqrt(1 - std::pow(optimizer.beta2, n))),
          .epsilon = rounded(optimizer.epsilon),
          .minus_step_size = rounded(-step_size)};
}

bool is_plain_memory(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.scalar_type() == at::kFloat &&
         tensor.is_non_overlapping_and_dense();
}

// With the strides of `like`, and with its elements in memory: a gradient may be the conjugate or the
// negative of what its memory holds.
at::Tensor laid_out_as(const at::Tensor& like, const at::Tensor& tensor) {
  if (tensor.strides() == like.strides()) return tensor.resolve_conj().resolve_neg();
  return at::empty_strided(like.sizes(), like.strides(), tensor.options()).copy_(tensor);
}

// The same value, step or no step: its bits do not depend on whether the gradient is used. In double
// precision, whatever the type.
double squared_norm(const at::Tensor& gradient) {
  const at::Tensor real = as_real(gradient);
  if (is_plain_memory(real)) return sum_of_squares(real.numel(), real.const_data_ptr<float>());
  return real.to(at::kDouble).square().sum().item<double>();
}

double update_one(const Optimizer& optimizer, std::uint64_t step, Variable& variable) {
  const at::Tensor gradient = laid_out_as(variable.value, variable.value.grad());
  if (optimizer.kind == OptimizerKind::kSgd) {
    const double squares = squared_norm(gradient);
    sgd(optimizer, variable, gradient);
    return squares;
  }
  make_moments(variable);
  const Moments moments{as_real(variable.value), as_real(gradient), as_real(variable.state[0]),
                        as_real(variable.state[1])};
  if (!is_plain_memory(moments.value) || !is_plain_memory(moments.gradient)) {
    const double squares = squared_norm(gradient);
    adam(optimizer, step, moments);
    return squares;
  }
  variable.value.unsafeGetTensorImpl()->bump_version();
  return adam_step(adam_numbers(optimizer, step), moments.gradient.numel(),
                   moments.gradient.const_data_ptr<float>(), moments.value.mutable_data_ptr<float>(),
                   moments.mean.mutable_data_ptr<float>(), moments.square.mutable_data_ptr<float>());
}

}  // namespace

std::vector<double> update(const Optimizer& optimizer, std::uint64_t step,
                           std::vector<Variable>& parameters) {
  const at::NoGradGuard no_grad;
  std::vector<double> squares;
  Optimizer without_decay = optimizer;
  without_decay.weight_decay = 0;
  for (Variable& variable : parameters) {
    const Optimizer& mine = variable.decay == Variable::Decay::kNone ? without_decay : optimizer;
    squares.push_back(variable.value.grad().defined() ? update_one(mine, step, variable) : 0);
    variable.value.mutable_grad().reset();
  }
  return squares;
}

double squares_of_gradient(const Variable& variable) {
  const at::NoGradGuard no_grad;
  const at::Tensor& gradient = variable.value.grad();
  return gradient.defined() ? squared_norm(laid_out_as(variable.value, gradient)) : 0;
}

std::vector<double> drop_gradients(std::vector<Variable>& parameters) {
  std::vector<double> squares;
  for (Variable& variable : parameters) {
    squares.push_back(squares_of_gradient(variable));
    variable.value.mutable_grad().reset();
  }
  return squares;
}

}  // namespace espalier
