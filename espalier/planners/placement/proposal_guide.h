#pragma once

// A proposal distribution for the search of placements: of some random changes the one that a small net rates
// highest is judged. The net has seen what changes of other placements were worth
// (learned/proposal_learning.h). It decides what is judged, never what is faster. The same bytes on any
// machine (rating_net.h).

#include <cstddef>
#include <string>
#include <string_view>

#include "espalier/planners/placement/change_figures.h"
#include "espalier/planners/rating_net.h"

namespace espalier::placement {

class ProposalGuide {
 public:
  // Throws std::logic_error where the net is not for rows of ChangeFigures.
  explicit ProposalGuide(RatingNet net);
  // Of a safetensors file; `where` for what is wrong in it (InputError).
  static ProposalGuide parse(std::string_view bytes, std::string_view where);
  // What parse reads, at a path. Throws InputError where it cannot be written.
  void write(const std::string& path, const SafetensorsMetadata& remarks) const { net_.write(path, remarks); }

  // How much shorter the step may get; only the order counts. O(weights).
  float rate(const ChangeFigures& change) const { return net_.rate(change.values); }

 private:
  RatingNet net_;
};

// The one that is part of the program.
const ProposalGuide& usual_proposals();

}  // namespace espalier::placement
