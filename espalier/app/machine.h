#pragma once

// What `local` means on this computer. The only function of the library that looks at the computer before a
// run.

#include "espalier/app/planning_job.h"

namespace espalier {

// Processors this process may use, an equal share of 90 % of the memory for each, and the processor's name.
Machine this_machine();

}  // namespace espalier
