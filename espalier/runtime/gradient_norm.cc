#include "espalier/runtime/gradient_norm.h"

#include <cmath>

#include "espalier/base/check.h"

namespace espalier {

std::vector<double> by_parameter(std::size_t parameters, const SquaresOfParameters& mine) {
  std::vector<double> squares(parameters, 0);
  for (const auto& [id, square] : mine) squares[id.index()] += square;
  return squares;
}

double norm_of_all(std::span<const std::vector<double>> workers) {
  double sum = 0;
  for (std::size_t p = 0; p < workers.front().size(); ++p) {
    for (const std::vector<double>& worker : workers) {
      ESP_CHECK(worker.size() == workers.front().size(), worker.size());
      sum += worker[p];
    }
  }
  return std::sqrt(sum);
}

double clip_factor(double norm, double max_norm) {
  const double factor = max_norm / (norm + 1e-6);
  return factor > 1 ? 1 : factor;  // not a number stays so, as in torch
}

}  // namespace espalier
