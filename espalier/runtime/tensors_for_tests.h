#pragma once

// How tests compare tensors that two machines, or two orders of sums, computed. Tests only; includes
// libtorch.

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

namespace espalier {

// ‖a - b‖ / max(‖b‖, 10⁻³ ‖all of b‖) of each tensor of `b` (docs/semantics.md, exactness). Tensors of which
// both are zero have 0.
inline std::map<std::string, double> relative_differences(const std::map<std::string, at::Tensor>& a,
                                                          const std::map<std::string, at::Tensor>& b) {
  const auto norm = [](const at::Tensor& tensor) {
    const bool complex = tensor.is_complex();
    return tensor.to(complex ? at::kComplexDouble : at::kDouble).abs().norm().item<double>();
  };
  double squares = 0;
  for (const auto& [name, value] : b) squares += norm(value) * norm(value);
  std::map<std::string, double> differences;
  for (const auto& [name, value] : b) {
    const double scale = std::max(norm(value), 1e-3 * std::sqrt(squares));
    const double difference =
        norm(a.at(name).to(value.is_complex() ? at::kComplexDouble : at::kDouble) - value);
    differences[name] = difference == 0 ? 0 : difference / scale;
  }
  return differences;
}

}  // namespace espalier
