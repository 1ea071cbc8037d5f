#pragma once

// What a device does in a step: actions, each of a stage and a micro-batch, or once per step.

#include <compare>
#include <cstdint>

#include "espalier/base/check.h"
#include "espalier/base/ids.h"

namespace espalier {

enum class ActionKind : std::uint8_t {
  kForward,         // F
  kBackward,        // B: both halves
  kInputGradient,   // I
  kWeightGradient,  // W
  kRecompute,       // R: forward again, before B or I
  kAllReduce,       // A: gradients among the replicas of the stage
  kTieSum,          // T: gradients of tied parameters among the stages that hold copies
  kUpdate,          // U: the optimizer's step
};
constexpr char letter(ActionKind kind) {
  return "FBIWRATU"[static_cast<std::size_t>(kind)];
}
constexpr bool is_sum(ActionKind kind) {  // A, T: of gradients; it goes on beside the list in which it stands
  return kind == ActionKind::kAllReduce || kind == ActionKind::kTieSum;
}
constexpr bool once_per_step(ActionKind kind) {  // A, T, U
  return is_sum(kind) || kind == ActionKind::kUpdate;
}

// An action without its micro-batch: what an order lists. T belongs to a tie, all others to a stage.
struct Step {
  ActionKind kind = ActionKind::kForward;

  constexpr Step() = default;
  constexpr Step(ActionKind action, StageId stage) : kind(action), index_(narrow(stage.index())) {
    ESP_CHECK(action != ActionKind::kTieSum, stage);
  }
  constexpr explicit Step(TieId tie) : kind(ActionKind::kTieSum), index_(narrow(tie.index())) {}

  constexpr StageId stage() const {
    ESP_CHECK(kind != ActionKind::kTieSum, index_);
    return StageId(index_);
  }
  constexpr TieId tie() const {
    ESP_CHECK(kind == ActionKind::kTieSum, letter(kind), index_);
    return TieId(index_);
  }
  // The index of either, as files and colours use it.
  constexpr std::size_t target() const { return index_; }
  constexpr bool is_of(StageId stage) const { return kind != ActionKind::kTieSum && index_ == stage.index(); }

  friend auto operator<=>(const Step&, const Step&) = default;

 private:
  std::uint32_t index_ = 0;
};

// The micro-batch of what happens once per step is 0.
struct Action : Step {
  std::uint32_t micro_batch = 0;

  constexpr Action() = default;
  constexpr Action(ActionKind action, StageId stage, std::uint32_t number)
      : Step(action, stage), micro_batch(number) {}
  constexpr explicit Action(TieId tie) : Step(tie) {}
  constexpr Action(const Step& step, std::uint32_t number) : Step(step), micro_batch(number) {}

  friend auto operator<=>(const Action&, const Action&) = default;
};
static_assert(sizeof(Action) == 12);

}  // namespace espalier
