#pragma once

// Names of actions, as the text and JSON forms of schedules and the checkers' messages write them.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/schedule/schedule.h"

namespace espalier {

enum class StageName : std::uint8_t { kShown, kLeftOut };

// "img:F0" or "F0"; "img:A", "img:U"; a tie has no stage: "T0". A stage that is not in the model: "#7:F0".
std::string action_name(const StagedModel& model, const Action& action, StageName with);

// The inverse; `only_stage` is meant where no stage is named. Throws InputError, which names no place.
Action parse_action(std::string_view text, const StagedModel& model, std::optional<StageId> only_stage);

// By device: its stage, if it has exactly one.
std::vector<std::optional<StageId>> only_stages(const StagedModel& model, std::size_t devices);

}  // namespace espalier
