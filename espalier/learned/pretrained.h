#pragma once

// The policy that comes with the program, trained on generated graphs by the command in docs/planners/
// learned.md. Its bytes are part of the program.

#include <string>

#include "espalier/learned/policy.h"

namespace espalier::placement {

Policy pretrained_policy(const std::string& device = "cpu");

}  // namespace espalier::placement
