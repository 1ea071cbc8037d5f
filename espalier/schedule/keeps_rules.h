#pragma once

// Whether lists keep the rules, for planners that ask it of every order they look at.

#include <vector>

#include "espalier/schedule/schedule.h"

namespace espalier {

// Whether a list for each device keeps the rules `complete`, `place`, `order` and `in-flight` of
// check_schedule, which says what is wrong. The channels that with_channels makes of such lists are right;
// whether they wait in a circle is another question. O(actions + replicas).
bool keeps_rules(const StagedModel& model, const std::vector<std::vector<Action>>& lists);

}  // namespace espalier
