#include "espalier/learned/weights.h"

#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <cstring>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"

namespace espalier::placement {
namespace {

constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kLittle = 1e-8;
// A table of logits has one weight for what a net moves by all of its own: it learns at another rate.
constexpr double kTableRate = 30;
constexpr std::string_view kTablePrefix = "table.";

std::string sizes_text(at::IntArrayRef sizes) {
  std::string text = "[";
  for (const std::int64_t size : sizes) {
    if (text.size() > 1) text += ',';
    text += std::to_string(size);
  }
  return text + "]";
}

}  // namespace

at::Tensor drawn_weight(std::uint64_t key, at::IntArrayRef sizes, double scale, at::Device device) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  Rng rng(key);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>((2 * rng.unit() - 1) * scale);
  at::Tensor tensor = at::from_blob(values.data(), sizes, at::kFloat).clone().to(device);
  tensor.set_requires_grad(true);
  return tensor;
}

Adam::Adam(NamedTensors weights) : weights_(std::move(weights)) {
  for (const auto& [name, weight] : weights_) {
    first_.push_back(at::zeros_like(weight));
    second_.push_back(at::zeros_like(weight));
  }
}

GradientSum::GradientSum(const NamedTensors& weights) : sums_(weights.size()) {
  for (const auto& [name, weight] : weights) leaves_.push_back(weight);
}

void GradientSum::add(const at::Tensor& part) {
  const std::vector<at::Tensor> more =
      torch::autograd::grad({part}, leaves_, {}, std::nullopt, false, /*allow_unused=*/true);
  const at::NoGradGuard guard;
  for (std::size_t i = 0; i < more.size(); ++i) {
    if (more[i].defined()) sums_[i] = sums_[i].defined() ? sums_[i] + more[i] : more[i];
  }
}

double Adam::step(const at::Tensor& loss, double learning_rate, double most_norm) {
  GradientSum gradients(weights_);
  gradients.add(loss);
  return step(gradients, learning_rate, most_norm);
}

double Adam::step(const GradientSum& sum, double learning_rate, double most_norm) {
  const std::vector<at::Tensor>& gradients = sum.sums();
  at::NoGradGuard guard;
  double squares = 0;
  for (const at::Tensor& gradient : gradients) {
    if (gradient.defined()) squares += gradient.square().sum().item<double>();
  }
  const double norm = std::sqrt(squares);
  if (!std::isfinite(norm)) return norm;
  const double scale = norm > most_norm ? most_norm / norm : 1;
  ++steps_;
  const auto steps = static_cast<double>(steps_);
  const double rate = learning_rate / (1 - std::pow(kBeta1, steps));
  const double correct = 1 / (1 - std::pow(kBeta2, steps));
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const at::Tensor gradient = gradients[i] * scale;
    first_[i].mul_(kBeta1).add_(gradient, 1 - kBeta1);
    second_[i].mul_(kBeta2).addcmul_(gradient, gradient, 1 - kBeta2);
    const double own = weights_[i].first.starts_with(kTablePrefix) ? kTableRate * rate : rate;
    at::Tensor weight = weights_[i].second;
    weight.addcdiv_(first_[i], (second_[i] * correct).sqrt_().add_(kLittle), -own);
  }
  return norm;
}

NamedTensors Adam::state() const {
  NamedTensors state;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    state.emplace_back("adam.m." + weights_[i].first, first_[i]);
    state.emplace_back("adam.v." + weights_[i].first, second_[i]);
  }
  return state;
}

void Adam::restore(const SafetensorsReader& file, std::uint64_t steps) {
  read_tensors(file, "checkpoint", state());
  steps_ = steps;
}

void write_tensors(const std::string& path, const NamedTensors& tensors,
                   const SafetensorsMetadata& metadata) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const auto& [name, tensor] : tensors)
    entries.push_back({name, "F32", {tensor.sizes().begin(), tensor.sizes().end()}});
  SafetensorsWriter writer(path, entries, metadata);
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor bytes = tensor.detach().to(at::kCPU, at::kFloat).contiguous();
    writer.write({static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()});
  }
  writer.finish();
}

void read_tensors(const SafetensorsReader& file, const std::string& path, const NamedTensors& tensors) {
  at::NoGradGuard guard;
  for (const auto& [name, tensor] : tensors) {
    const SafetensorsReader::Entry* entry = file.find(name);
    if (entry == nullptr)
      throw InputError(path + ": lacks the tensor '" + name + "'; expected a policy file");
    if (entry->dtype != "F32" || at::IntArrayRef(entry->shape) != tensor.sizes()) {
      throw InputError(path + ": tensor '" + name + "' is " + entry->dtype + " " + sizes_text(entry->shape) +
                       "; expected F32 " + sizes_text(tensor.sizes()));
    }
    const at::Tensor values = at::empty(tensor.sizes(), at::kFloat);
    if (!entry->data.empty()) std::memcpy(values.mutable_data_ptr(), entry->data.data(), entry->data.size());
    tensor.copy_(values);
  }
}

}  // namespace espalier::placement
