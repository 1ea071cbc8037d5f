#pragma once

// The norm of all gradients together, wherever they are. It is a sum of squares by parameter, each from the
// parameter's owner, added up in parameter order: its bits do not depend on the plan where the gradients'
// bits do not.

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "espalier/base/ids.h"

namespace espalier {

using SquaresOfParameters = std::vector<std::pair<ParameterId, double>>;

// What a worker tells the others: by ParameterId, 0 where another one owns the parameter.
std::vector<double> by_parameter(std::size_t parameters, const SquaresOfParameters& mine);

// `workers`: what each one told.
double norm_of_all(std::span<const std::vector<double>> workers);

// What gradients of that norm are multiplied by, as torch.nn.utils.clip_grad_norm_ does it: at most 1.
double clip_factor(double norm, double max_norm);

}  // namespace espalier
