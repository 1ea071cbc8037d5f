#pragma once

// Small changes of a device's list that keep it legal: F before B or I before W of each micro-batch, what
// stands once a step behind all others of its stage.

#include <cstdint>
#include <optional>
#include <vector>

#include "espalier/base/rng.h"
#include "espalier/plan/staged_model.h"

namespace espalier {

// Whether orders may have backward in two halves.
enum class Halves : std::uint8_t { kMay, kNever };

// Whether what the halves take of an operator's backward is a guess: published profiles have one time for
// both (frontend/pipedream.h).
inline bool halves_are_guessed(const OperatorCost& cost) {
  return cost.weight_gradient > Duration() && cost.origin == Origin::kProfile;
}

// May this list stand on a device? At every point each stage has had as many F as R, as R as B and I together
// (as F where none is recomputed), and as I as W; nothing after its A or U. O(steps).
bool keeps_order(const std::vector<Step>& list, std::size_t stages);

// One change drawn at random; nothing if what was drawn is not legal or changes nothing. O(steps).
std::optional<std::vector<Step>> moved(const std::vector<Step>& list, const StagedModel& model, Halves halves,
                                       Rng& rng);

}  // namespace espalier
