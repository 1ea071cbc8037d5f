#pragma once

// The program without its process: tests call it with their own streams.

#include <ostream>
#include <string>
#include <vector>

#include "espalier/app/planning_job.h"
#include "espalier/cli/console.h"

namespace espalier::cli {

// Parses, runs one verb, and returns the exit code: 0 done, 1 `verify` found a difference, 2 wrong input, 3
// no feasible answer, 4 out of memory, 70 our bug. Catches everything.
int run_program(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err,
                const Terminal& terminal, const Machine& machine);

}  // namespace espalier::cli
