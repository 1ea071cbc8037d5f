#pragma once

// The policies that come with the program, trained on generated graphs by the commands in docs/planners/
// learned.md. Their bytes are part of the program.

#include <string>

#include "espalier/learned/policy.h"
#include "espalier/learned/relocation.h"

namespace espalier::placement {

Policy pretrained_policy(const std::string& device = "cpu");
RelocationPolicy pretrained_relocation();

}  // namespace espalier::placement
