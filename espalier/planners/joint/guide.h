#pragma once

// Which plans one step away the joint search should judge first: a small net that has seen what steps of
// other problems were worth (learned/guide_learning.h). It decides what is simulated, never what is faster.
// The same bytes on any machine (rating_net.h).

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/planners/joint/figures.h"
#include "espalier/planners/rating_net.h"

namespace espalier::joint {

class MoveGuide {
 public:
  // Throws std::logic_error where the net is not for rows of MoveFigures.
  explicit MoveGuide(RatingNet net);
  // Of a safetensors file; `where` for what is wrong in it (InputError).
  static MoveGuide parse(std::string_view bytes, std::string_view where);
  // What parse reads, at a path. Throws InputError where it cannot be written.
  void write(const std::string& path, const SafetensorsMetadata& remarks) const { net_.write(path, remarks); }

  // Of each move how much faster it may be, as the logarithm of a ratio; only the order counts. O(weights)
  // for each.
  std::vector<float> rate(std::span<const MoveFigures> moves) const;

 private:
  RatingNet net_;
};

// The one that is part of the program.
const MoveGuide& usual_guide();

}  // namespace espalier::joint
