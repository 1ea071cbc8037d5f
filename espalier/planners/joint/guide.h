#pragma once

// Which plans one step away the joint search should judge first: a small net that has seen what steps of
// other problems were worth (learned/guide_learning.h). It decides what is simulated, never what is faster.
// The same bytes on any machine: sums of products in one order, and no function but the larger of two
// numbers.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/base/safetensors.h"
#include "espalier/planners/joint/figures.h"

namespace espalier::joint {

class MoveGuide {
 public:
  // A row of weights for each unit: two layers of units that keep what is positive, then one sum.
  struct Layer {
    std::size_t inputs = 0, units = 0;
    std::vector<float> weights, offsets;  // units × inputs; units
  };
  struct Net {
    std::vector<float> middle, scale;  // of figures: what comes in is (figure - middle) · scale
    std::vector<Layer> layers;         // the last has one unit
  };

  // Throws std::logic_error where layers do not fit together.
  explicit MoveGuide(Net net);
  // Of a safetensors file; `where` for what is wrong in it (InputError).
  static MoveGuide parse(std::string_view bytes, std::string_view where);
  // What parse reads, at a path. Throws InputError where it cannot be written.
  void write(const std::string& path, const SafetensorsMetadata& remarks) const;

  // Of each move how much faster it may be, as the logarithm of a ratio; only the order counts. O(weights)
  // for each.
  std::vector<float> rate(std::span<const MoveFigures> moves) const;

 private:
  Net net_;
};

// The one that is part of the program.
const MoveGuide& usual_guide();

}  // namespace espalier::joint
