#pragma once

// What passes between stages of one device, without a message, and the gradients of readers here, which meet
// before they return. Includes libtorch; runtime/ only.

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "espalier/runtime/pieces.h"

namespace espalier {

// A crossing, and a micro-batch of its producer.
using Produced = std::pair<std::uint32_t, std::uint32_t>;

// Tensors whose producer and some readers are on this device.
class LocalTensors {
 public:
  void clear() { kept_.clear(); }
  // Until `readers` have taken it.
  void keep(const Produced& produced, Piece piece, std::size_t readers);
  // For one reader; none where it comes by message. The last reader's turn drops the tensor.
  std::vector<Piece> take(const Produced& produced);

 private:
  struct Kept {
    Piece piece;
    std::size_t readers_left = 0;
  };
  std::map<Produced, Kept> kept_;
};

// Gradients from the readers on this device.
class LocalGradients {
 public:
  void clear() { pieces_.clear(); }
  void add(const Produced& produced, Piece piece) { pieces_[produced].push_back(std::move(piece)); }
  const std::vector<Piece>& of(const Produced& produced) const;
  void drop(const Produced& produced) { pieces_.erase(produced); }

 private:
  std::map<Produced, std::vector<Piece>> pieces_;
};

}  // namespace espalier
