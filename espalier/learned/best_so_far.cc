#include "espalier/learned/best_so_far.h"

#include <utility>

#include "espalier/planners/placement/repair.h"

namespace espalier::placement {

void BestSoFar::see(const Sample& sample) {
  if (sample.evaluated.fits) {
    if (!best_ || sample.evaluated.time < best_->evaluated.time) best_ = sample;
  } else if (!best_ && (!closest_ || sample.evaluated.lack < closest_->evaluated.lack)) {
    closest_ = sample;
  }
}

Placed BestSoFar::answer(const PlacementTask& task, Context& context) const {
  Placed placed;
  if (best_) {
    placed.assignment = best_->assignment;
    placed.estimate = best_->evaluated.time;
    placed.orders = orders_of(task, best_->levels);
    return placed;
  }
  if (!closest_) {
    placed.why = "the budget has no state for a sample, expected one at least";
    return placed;
  }
  Repaired repaired = repair(task.instance(), closest_->assignment);
  if (repaired.assignment) {
    placed.assignment = std::move(repaired.assignment);
    placed.orders = orders_of(task, {});
    if (!context.take_state()) return placed;
    Scratch scratch;
    placed.estimate = task.engine().evaluate(*placed.assignment, scratch).time;
    return placed;
  }
  // Repair counts all as held all step long; where the engine counts what is alive, it may ask for too much.
  if (task.engine().rules().memory == Rules::Memory::kAllHeld) {
    placed.why = std::move(repaired.why);
    placed.lacks = std::move(repaired.lacks);
  } else {
    placed.why = "no sample fits: the devices of the nearest lack " + to_text(closest_->evaluated.lack) +
                 " together, and it cannot be repaired";
  }
  return placed;
}

}  // namespace espalier::placement
