#include "espalier/runtime/output_sums.h"

#include <ATen/core/grad_mode.h>

namespace espalier {

void OutputSummer::after(OperatorId op, const Tensors& tensors) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < graph_.outputs().size(); ++i) {
    const TensorId id = graph_.outputs()[i];
    const at::Tensor& value = tensors[id.index()];
    if (graph_.tensor(id).producer != op || !value.defined() || value.is_complex()) continue;
    sums_.push_back({.output = i,
                     .is_scalar = value.dim() == 0,
                     .total = value.to(at::kDouble).sum().item<double>(),
                     .elements = static_cast<double>(value.numel())});
  }
}

}  // namespace espalier
