#pragma once

// What the text form of a graph (text.h) leaves out: what its reader supposes and its printer does not say.
// Internal to the module.

#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "espalier/graph/graph.h"

namespace espalier {

inline constexpr std::string_view kTextPunctuation = "=(),:@[]";
// What begins a line whose tensor nobody produces.
inline constexpr std::array<std::string_view, 4> kTextSources{"input", "parameter", "buffer", "constant"};

// Whether an output of an operator, or a tensor that nobody produces, requires a gradient. `training`: the
// graph holds backward or update operators.
bool derived_gradient(const Operator& op, const Tensor& output, std::span<const Tensor> tensors);
bool derived_gradient(const Tensor& source, std::span<const Parameter> parameters, bool training);
// What nobody reads.
std::vector<TensorId> derived_outputs(const GraphParts& parts);
// The output called so, if it is one floating-point number.
std::optional<TensorId> derived_loss(std::span<const Tensor> tensors, std::span<const TensorId> outputs);

}  // namespace espalier
