#include "espalier/plan/training.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "espalier/cost/cpu_kernels.h"

namespace espalier {

std::string_view to_text(LearningRateSchedule::Shape shape) {
  switch (shape) {
    case LearningRateSchedule::Shape::kConstant:
      return "constant";
    case LearningRateSchedule::Shape::kLinear:
      return "linear";
    case LearningRateSchedule::Shape::kCosine:
      return "cosine";
  }
  return "?";
}

std::optional<LearningRateSchedule::Shape> parse_schedule_shape(std::string_view text) {
  using Shape = LearningRateSchedule::Shape;
  for (const Shape shape : {Shape::kConstant, Shape::kLinear, Shape::kCosine}) {
    if (to_text(shape) == text) return shape;
  }
  return std::nullopt;
}

double learning_rate_factor(const LearningRateSchedule& schedule, std::uint64_t step) {
  if (step < schedule.warm_up) return static_cast<double>(step) / static_cast<double>(schedule.warm_up);
  if (schedule.shape == LearningRateSchedule::Shape::kConstant) return 1;
  if (step >= schedule.steps) return 0;
  const auto left = static_cast<double>(schedule.steps - step);
  const auto decay = static_cast<double>(schedule.steps - std::min(schedule.warm_up, schedule.steps));
  if (schedule.shape == LearningRateSchedule::Shape::kLinear) return left / decay;
  return 0.5 * (1 + std::cos(std::numbers::pi * (1 - left / decay)));
}

Bytes optimizer_state(const Optimizer& optimizer, Bytes parameters) {
  const std::int64_t moments = optimizer.kind != OptimizerKind::kSgd ? 2 : optimizer.momentum != 0 ? 1 : 0;
  return (optimizer.master_weights ? 2 * (moments + 1) : moments) * parameters;
}

Bytes update_workspace(const Optimizer& optimizer, const Parameter& parameter, const DeviceKind& kind) {
  if (parameter.dtype == DType::kOpaque) return {};
  const Bytes bytes = parameter.bytes();
  if (is_cpu(kind) && parameter.dtype == DType::kF32) {
    return optimizer.kind == OptimizerKind::kSgd && optimizer.weight_decay != 0 ? bytes : Bytes();
  }
  const bool complex =
      parameter.dtype == DType::kC32 || parameter.dtype == DType::kC64 || parameter.dtype == DType::kC128;
  const std::int64_t elements = bytes.count() / element_size(parameter.dtype).count();
  return 16 * Bytes(complex ? 2 * elements : elements);
}

}  // namespace espalier
