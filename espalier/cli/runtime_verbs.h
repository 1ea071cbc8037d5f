#pragma once

// The verbs that compute: in a build without libtorch they say how to make one that has it.

#include "espalier/cli/verbs.h"

namespace espalier::cli {

// Throws InputError: this build cannot, and what to do.
[[noreturn]] void needs_runtime(const std::string& verb);

// Devices of the plan that have a stage: one worker each unless told.
int devices_in_use(const StagedModel& model);

}  // namespace espalier::cli
