#pragma once

// Weights that learn: Adam (Kingma, Ba, ICLR'15) on named tensors, and their form in safetensors files.
//
// Includes libtorch; learned/ only.

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "espalier/base/safetensors.h"

namespace espalier::placement {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// A weight as it begins: uniform in ±scale, the same for the same key on any machine. A leaf that requires
// gradients.
at::Tensor drawn_weight(std::uint64_t key, at::IntArrayRef sizes, double scale, at::Device device);

// Gradients of a loss that comes in parts.
class GradientSum {
 public:
  explicit GradientSum(const NamedTensors& weights);
  void add(const at::Tensor& part);
  const std::vector<at::Tensor>& sums() const { return sums_; }  // by weight; undefined where no part has one

 private:
  std::vector<at::Tensor> leaves_, sums_;
};

class Adam {
 public:
  // Of leaves that require gradients; they are changed in place.
  explicit Adam(NamedTensors weights);

  // One step down the loss's gradients, which are first scaled to a norm of at most `most_norm`. Returns the
  // norm that they had. A step whose gradients are not finite is left out.
  double step(const at::Tensor& loss, double learning_rate, double most_norm);
  // The same down gradients of all its weights.
  double step(const GradientSum& gradients, double learning_rate, double most_norm);

  std::uint64_t steps() const { return steps_; }

  // Moments as tensors "adam.m.NAME" and "adam.v.NAME", to be written, and read back with the steps.
  NamedTensors state() const;
  void restore(const SafetensorsReader& file, std::uint64_t steps);

 private:
  NamedTensors weights_;
  std::vector<at::Tensor> first_, second_;
  std::uint64_t steps_ = 0;
};

// Writes float tensors, atomically.
void write_tensors(const std::string& path, const NamedTensors& tensors, const SafetensorsMetadata& metadata);

// Copies tensors of these names from the file. Throws InputError naming what is missing or has other sizes.
void read_tensors(const SafetensorsReader& file, const std::string& path, const NamedTensors& tensors);

}  // namespace espalier::placement
