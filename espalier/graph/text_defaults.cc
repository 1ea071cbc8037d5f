#include "espalier/graph/text_defaults.h"

#include <algorithm>

namespace espalier {

bool derived_gradient(const Operator& op, const Tensor& output, std::span<const Tensor> tensors) {
  return op.role == OperatorRole::kForward && is_floating_point(output.dtype) &&
         std::any_of(op.inputs.begin(), op.inputs.end(),
                     [&](TensorId id) { return tensors[id.index()].requires_grad; });
}

bool derived_gradient(const Tensor& source, std::span<const Parameter> parameters, bool training) {
  return !training && source.role == TensorRole::kParameter && is_floating_point(source.dtype) &&
         parameters[source.parameter->index()].trainable;
}

std::vector<TensorId> derived_outputs(const GraphParts& parts) {
  std::vector<char> read(parts.tensors.size(), 0);
  for (const Operator& op : parts.operators) {
    for (const TensorId id : op.inputs) read[id.index()] = 1;
  }
  std::vector<TensorId> outputs;
  for (std::size_t i = 0; i < parts.tensors.size(); ++i) {
    if (parts.tensors[i].producer && read[i] == 0) outputs.emplace_back(i);
  }
  return outputs;
}

std::optional<TensorId> derived_loss(std::span<const Tensor> tensors, std::span<const TensorId> outputs) {
  for (const TensorId id : outputs) {
    const Tensor& t = tensors[id.index()];
    const bool one = t.elements().constant() == std::optional<std::int64_t>(1);
    if (t.name == "loss" && is_floating_point(t.dtype) && one) return id;
  }
  return std::nullopt;
}

}  // namespace espalier
