#pragma once

// A plan that is to be executed, as ExecutionFlags name it.

#include <string>
#include <vector>

#include "espalier/app/opened_plan.h"
#include "espalier/cli/runtime_verbs.h"

namespace espalier::cli {

// Both throw InputError also for a plan that the runtime cannot run; the first for one that names no exported
// program, too.
OpenedPlan open_with_model(const ExecutionFlags& flags);
OpenedPlan open_without_model(const ExecutionFlags& flags);  // for a run that computes nothing

// --workers, or one for each device that has a stage.
int workers_for(const ExecutionFlags& flags, const PlanFile& file);

// Where the plan is for other kinds of devices than those that these flags make it run on; else none.
std::vector<std::string> device_warnings(const Program& program, const OpenedPlan& opened,
                                         const ExecutionFlags& flags);

}  // namespace espalier::cli
