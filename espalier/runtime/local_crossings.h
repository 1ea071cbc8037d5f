#pragma once

// What passes between stages of one device, without a message, and the gradients of readers here, which meet
// before they return. Includes libtorch; runtime/ only.

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "espalier/runtime/device_view.h"

namespace espalier {

// Tensors whose producer and some readers are on this device.
class LocalTensors {
 public:
  void clear() { kept_.clear(); }
  void keep(const Passage& passage, at::Tensor value, std::uint32_t readers);
  // For one reader; none where it comes by message. The last reader's turn drops the tensor.
  std::optional<at::Tensor> take(const Passage& passage);

 private:
  struct Kept {
    at::Tensor value;
    std::uint32_t readers_left = 0;
  };
  std::map<Passage, Kept> kept_;
};

// Gradients of a tensor from several stages that read it.
using GradientParts = std::map<StageId, at::Tensor>;

// In stage order, so that the bits do not depend on who came first. Undefined if there is none.
at::Tensor sum_of(const GradientParts& parts);

// Gradients from the readers on this device.
class LocalGradients {
 public:
  void clear() { parts_.clear(); }
  void add(const Passage& passage, StageId reader, at::Tensor part);
  // The parts so far, which it then forgets.
  GradientParts take(const Passage& passage);

 private:
  std::map<Passage, GradientParts> parts_;
};

}  // namespace espalier
