#include "espalier/planners/orders/order_moves.h"

#include <algorithm>

#include "espalier/schedule/schedule.h"

namespace espalier {
namespace {

struct Counts {
  std::uint32_t forwards = 0, recomputed = 0, backwards = 0, split = 0, weights = 0;
  bool ended = false;  // A or U has been
};

bool is_backward(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kInputGradient;
}

// How far a step goes: mostly a few places, now and then anywhere.
std::size_t draw_distance(Rng& rng, std::size_t size) {
  const std::uint64_t range = rng.below(4) == 0 ? size : std::min<std::size_t>(size, 6);
  return 1 + rng.below(range);
}

std::vector<Step> with_place_changed(const std::vector<Step>& list, std::size_t from, Rng& rng) {
  const std::size_t distance = draw_distance(rng, list.size());
  const bool earlier = rng.below(2) == 0;
  std::vector<Step> result = list;
  const auto at = [&](std::size_t place) { return result.begin() + static_cast<std::ptrdiff_t>(place); };
  if (earlier) {
    std::rotate(at(from - std::min(from, distance)), at(from), at(from + 1));
  } else {
    std::rotate(at(from), at(from + 1), at(std::min(from + distance, list.size() - 1) + 1));
  }
  return result;
}

std::vector<Step> with_split(const std::vector<Step>& list, std::size_t at) {
  // Its W stands behind as many W of the stage as there are I before it, so directly behind I where none
  // waits, else behind the last that waits.
  const StageId stage = list[at].stage();
  std::size_t waiting = 0;
  for (std::size_t i = 0; i < at; ++i) {
    if (!list[i].is_of(stage)) continue;
    if (list[i].kind == ActionKind::kInputGradient) ++waiting;
    if (list[i].kind == ActionKind::kWeightGradient) --waiting;
  }
  std::size_t place = at + 1;
  for (std::size_t i = at + 1; i < list.size() && waiting > 0; ++i) {
    if (!list[i].is_of(stage) || list[i].kind != ActionKind::kWeightGradient) continue;
    --waiting;
    place = i + 1;
  }
  std::vector<Step> result = list;
  result[at] = Step(ActionKind::kInputGradient, stage);
  result.insert(result.begin() + static_cast<std::ptrdiff_t>(place),
                Step(ActionKind::kWeightGradient, stage));
  return result;
}

// B in place of I, and its W goes.
std::vector<Step> with_halves_joined(const std::vector<Step>& list, std::size_t at) {
  const StageId stage = list[at].stage();
  std::size_t before = 0;  // I of the stage before it
  for (std::size_t i = 0; i < at; ++i) before += list[i] == list[at];
  std::vector<Step> result = list;
  result[at] = Step(ActionKind::kBackward, stage);
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (result[i] != Step(ActionKind::kWeightGradient, stage) || before-- > 0) continue;
    result.erase(result.begin() + static_cast<std::ptrdiff_t>(i));
    break;
  }
  return result;
}

}  // namespace

bool keeps_order(const std::vector<Step>& list, std::size_t stages) {
  std::vector<Counts> counts(stages);
  std::vector<char> recomputes(stages, false);
  for (const Step& step : list) {
    if (step.kind == ActionKind::kRecompute) recomputes.at(step.target()) = true;
  }
  bool tied = false;  // T ends all stages here: which of them it is of is not asked
  for (const Step& step : list) {
    if (step.kind == ActionKind::kTieSum) {
      tied = true;
      continue;
    }
    Counts& here = counts.at(step.stage().index());
    if (once_per_step(step.kind)) {
      here.ended = true;
      continue;
    }
    if (here.ended || tied) return false;
    if (step.kind == ActionKind::kForward) ++here.forwards;
    if (step.kind == ActionKind::kRecompute && ++here.recomputed > here.forwards) return false;
    if (is_backward(step.kind)) {
      const std::uint32_t ready = recomputes[step.target()] ? here.recomputed : here.forwards;
      if (++here.backwards > ready) return false;
      here.split += step.kind == ActionKind::kInputGradient;
    }
    if (step.kind == ActionKind::kWeightGradient && ++here.weights > here.split) return false;
  }
  return true;
}

std::optional<std::vector<Step>> moved(const std::vector<Step>& list, const StagedModel& model, Halves halves,
                                       Rng& rng) {
  if (list.size() < 2) return std::nullopt;
  const std::size_t at = rng.below(list.size());
  const Step step = list[at];
  if (once_per_step(step.kind)) return std::nullopt;
  std::vector<Step> result;
  const StagedStage& stage = model.stages.at(step.stage().index());
  // The devices of a group do the same: their lists would have to change together.
  const bool alone = stage.replicas.front().devices.size() == 1;
  const bool other_halves = rng.below(8) == 0 && alone && halves == Halves::kMay;
  if (other_halves && step.kind == ActionKind::kBackward && can_split(stage)) {
    result = with_split(list, at);
  } else if (other_halves && step.kind == ActionKind::kInputGradient) {
    result = with_halves_joined(list, at);
  } else {
    result = with_place_changed(list, at, rng);
  }
  if (result == list || !keeps_order(result, model.stages.size())) return std::nullopt;
  return result;
}

}  // namespace espalier
