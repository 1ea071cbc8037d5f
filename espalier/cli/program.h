#pragma once

// The program without its process: tests call it with their own streams.

#include <ostream>
#include <string>
#include <vector>

#include "espalier/app/planning_job.h"
#include "espalier/cli/console.h"

namespace espalier::cli {

struct RuntimeVerbs;

// Parses, runs one verb, and returns the exit code: 0 done, 1 `verify` found a difference, 2 wrong input, 3
// no feasible answer, 4 out of memory, 70 our bug. Catches everything. A verb that executes models is run by
// `runtime`, or, where that is null, ends this process for espalier-runtime (runtime_program.h).
int run_program(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err,
                const Terminal& terminal, const Machine& machine, const RuntimeVerbs* runtime);

struct Program;

// The same with other arguments and this process's streams, as a process of its own would.
int run_program_again(const Program& program, const std::vector<std::string>& arguments);

}  // namespace espalier::cli
