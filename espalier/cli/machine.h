#pragma once

// Looking at the computer: what `local` means here.

#include "espalier/app/planning_job.h"

namespace espalier::cli {

// Processors this process may use, an equal share of 90 % of the memory for each, and the processor's name.
Machine this_machine();

}  // namespace espalier::cli
