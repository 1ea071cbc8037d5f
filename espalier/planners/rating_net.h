#pragma once

// A small net that says of a row of numbers what it may be worth: what guides of searches are made of
// (joint/guide.h, placement/proposal_guide.h). The same bytes on any machine: sums of products in one order,
// and no function but the larger of two numbers.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/base/safetensors.h"

namespace espalier {

class RatingNet {
 public:
  // A row of weights for each unit: layers of units that keep what is positive, then one sum.
  struct Layer {
    std::size_t inputs = 0, units = 0;
    std::vector<float> weights, offsets;  // units × inputs; units
  };
  struct Net {
    std::vector<float> middle, scale;  // of a row: what comes in is (number - middle) · scale
    std::vector<Layer> layers;         // the last has one unit
  };

  // Throws std::logic_error where layers do not fit together, or have more units than kMostUnits.
  explicit RatingNet(Net net);
  // Of a safetensors file, for rows of so many numbers; `where` for what is wrong in it (InputError), `verb`
  // for who writes such files.
  static RatingNet parse(std::string_view bytes, std::string_view where, std::size_t inputs,
                         std::string_view verb);
  // What parse reads, at a path. Throws InputError where it cannot be written.
  void write(const std::string& path, const SafetensorsMetadata& remarks) const;

  std::size_t inputs() const { return net_.middle.size(); }
  static constexpr std::size_t kMostUnits = 256;  // of a layer, and numbers of a row

  // Only the order of rates counts. O(weights).
  float rate(std::span<const float> row) const;

 private:
  Net net_;
  std::vector<std::vector<float>> columns_;  // by layer: its weights, those of one input together
};

}  // namespace espalier
