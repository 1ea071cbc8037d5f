#pragma once

// What `local` means on this computer. The only function of the library that looks at the computer before a
// run.

#include "espalier/app/planning_job.h"

namespace espalier {

// Processors and an equal share of 90 % of the memory for each, as this process may use them (base/host.h).
Machine this_machine();

}  // namespace espalier
