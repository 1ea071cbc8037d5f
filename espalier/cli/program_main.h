#pragma once

// The program's process: signals, allocator, terminal and machine, then run_program.

namespace espalier::cli {

struct RuntimeVerbs;

// What `main` does. `runtime`: of espalier-runtime; null in espalier.
int program_main(int argc, char** argv, const RuntimeVerbs* runtime);

}  // namespace espalier::cli
