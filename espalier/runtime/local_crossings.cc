#include "espalier/runtime/local_crossings.h"

namespace espalier {

void LocalTensors::keep(const Passage& passage, at::Tensor value, std::uint32_t readers) {
  if (readers > 0) kept_[passage] = {std::move(value), readers};
}

std::optional<at::Tensor> LocalTensors::take(const Passage& passage) {
  const auto found = kept_.find(passage);
  if (found == kept_.end()) return std::nullopt;
  at::Tensor value = found->second.value;
  if (--found->second.readers_left == 0) kept_.erase(found);
  return value;
}

at::Tensor sum_of(const GradientParts& parts) {
  at::Tensor sum;
  for (const auto& [reader, part] : parts) sum = sum.defined() ? sum.add(part) : part;
  return sum;
}

void LocalGradients::add(const Passage& passage, StageId reader, at::Tensor part) {
  parts_[passage][reader] = std::move(part);
}

GradientParts LocalGradients::take(const Passage& passage) {
  auto found = parts_.extract(passage);
  return found ? std::move(found.mapped()) : GradientParts();
}

}  // namespace espalier
