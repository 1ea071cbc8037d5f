#pragma once

// Which parts of a stage may leave it.

#include <vector>

#include "espalier/planners/joint/space.h"

namespace espalier::joint {

struct Part {
  enum class Side : std::uint8_t {
    kBeginning,  // nothing of the rest comes before it
    kEnd,        // nothing of the rest comes behind it
    kPiece,      // neither reads from the rest nor is read by it
  } side = Side::kPiece;
  OperatorSet operators;
};

// Beginnings and ends of a stage, in the graph's order, and its pieces where it falls apart: each leaves
// something of the stage. Up to kAllCuts operators every cut, else those where fewest bytes cross near some
// shares of the work. Cuts stand where no colocation group spans them. O(operators + links).
std::vector<Part> parts_of(const Space& space, const OperatorSet& stage, KindId kind, BatchSize micro_batch);
inline constexpr std::size_t kAllCuts = 10;

}  // namespace espalier::joint
