#pragma once

// verify_plan as its own tests call it. Includes libtorch; runtime/ only.

#include <string>

#include "espalier/runtime/runtime.h"
#include "espalier/runtime/step_hooks.h"

namespace espalier {

// verify_plan with hooks in the plan's run; the reference has none. `hooks` may be null.
VerifyResult verify_plan_with(const PlanFile& plan, const std::string& model, const VerifyOptions& options,
                              StepHooks* hooks);

}  // namespace espalier
