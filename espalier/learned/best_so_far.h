#pragma once

// What a method that judges one sample after the other answers: the best that fits, or the reason why there
// is none.

#include <optional>

#include "espalier/learned/placement_task.h"
#include "espalier/planners/context.h"
#include "espalier/planners/placement/placer.h"

namespace espalier::placement {

class BestSoFar {
 public:
  // Of equals the first is kept.
  void see(const Sample& sample);

  const std::optional<Sample>& best() const { return best_; }  // that fits

  // The best, with the engine's step as estimate. Where nothing fitted, the sample that lacked least is
  // repaired (a state, where one is left), and `why` says what lacks where that does not help.
  Placed answer(const PlacementTask& task, Context& context) const;

 private:
  std::optional<Sample> best_, closest_;
};

}  // namespace espalier::placement
