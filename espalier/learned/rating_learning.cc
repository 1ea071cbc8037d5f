#include "espalier/learned/rating_learning.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/learned/torch_threads.h"
#include "espalier/learned/weights.h"

namespace espalier {
namespace {

using placement::Adam;
using placement::drawn_weight;
using placement::FewTorchThreads;
using placement::NamedTensors;

// Means and deviations of numbers.
struct Scale {
  std::vector<float> middle, factor;

  explicit Scale(const at::Tensor& numbers) {
    const at::Tensor mean = numbers.mean(0), deviation = numbers.std(0, false).clamp_min(1e-3);
    for (std::int64_t i = 0; i < numbers.size(1); ++i) {
      middle.push_back(mean[i].item<float>());
      factor.push_back(1 / deviation[i].item<float>());
    }
  }
};

std::vector<float> floats_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

}  // namespace

RatingNet learn_ratings(const RatedRows& rows, const RatingLearning& options) {
  ESP_CHECK(rows.rows() > 0 && rows.numbers.size() == rows.rows() * rows.inputs &&
                rows.weight.size() == rows.rows(),
            rows.rows());
  const auto count = static_cast<std::int64_t>(rows.rows()), width = static_cast<std::int64_t>(rows.inputs);
  const FewTorchThreads few(static_cast<std::size_t>(options.batch));
  at::Tensor numbers = at::tensor(rows.numbers).view({count, width});
  const at::Tensor worth = at::tensor(rows.worth), weight = at::tensor(rows.weight);
  const Scale scale(numbers);
  numbers = (numbers - at::tensor(scale.middle)) * at::tensor(scale.factor);
  NamedTensors weights;
  std::vector<std::int64_t> units = options.units;
  units.push_back(1);
  std::int64_t inputs = width;
  for (std::size_t l = 0; l < units.size(); ++l) {
    const double most = std::sqrt(6.0 / static_cast<double>(inputs));
    weights.emplace_back("weights",
                         drawn_weight(stream_key(options.seed, {1, l}), {units[l], inputs}, most, at::kCPU));
    weights.emplace_back("offsets",
                         drawn_weight(stream_key(options.seed, {2, l}), {units[l]}, 0.01, at::kCPU));
    inputs = units[l];
  }
  Adam adam(weights);
  Rng rng(stream_key(options.seed, {3}));
  for (std::uint64_t update = 0; update < options.updates; ++update) {
    at::Tensor drawn = at::empty({options.batch}, at::kLong);
    for (std::int64_t i = 0; i < options.batch; ++i) {
      drawn.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(rng.below(rows.rows()));
    }
    at::Tensor said = numbers.index_select(0, drawn);
    for (std::size_t l = 0; l < units.size(); ++l) {
      said = at::linear(said, weights[2 * l].second, weights[2 * l + 1].second);
      if (l + 1 < units.size()) said = at::relu(said);
    }
    const at::Tensor wanted = worth.index_select(0, drawn);
    const at::Tensor loss = (weight.index_select(0, drawn) *
                             at::smooth_l1_loss(said.squeeze(1), wanted, at::Reduction::None, options.small))
                                .mean();
    const double done = static_cast<double>(update) / static_cast<double>(options.updates);
    adam.step(loss, options.learning_rate * (0.01 + 0.99 * 0.5 * (1 + std::cos(3.14159265358979 * done))),
              10);
  }
  RatingNet::Net net{.middle = scale.middle, .scale = scale.factor, .layers = {}};
  inputs = width;
  for (std::size_t l = 0; l < units.size(); ++l) {
    net.layers.push_back({.inputs = static_cast<std::size_t>(inputs),
                          .units = static_cast<std::size_t>(units[l]),
                          .weights = floats_of(weights[2 * l].second),
                          .offsets = floats_of(weights[2 * l + 1].second)});
    inputs = units[l];
  }
  return RatingNet(std::move(net));
}

}  // namespace espalier
