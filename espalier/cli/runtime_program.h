#pragma once

// `espalier` links no libtorch, whose loading takes a quarter of a second, and so begins at once. What
// executes models is another program, espalier-runtime: the same verbs with the runtime, beside the first.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace espalier::cli {

// The path of espalier-runtime, in the folder of this process's own program, which may be that one. `verb` is
// who asks. Throws InputError in a build without libtorch, with what to do, and where the file is missing.
std::string runtime_program(const std::string& verb);

// This process becomes espalier-runtime with these arguments: it keeps its number, files and environment, but
// that OMP_NUM_THREADS is 1, unless set, for the verbs that work in several processes. Throws InputError as
// above, and where the program cannot be started.
[[noreturn]] void hand_over(const std::string& verb, const std::vector<std::string>& arguments);

// The libtorch that espalier-runtime was built with, "2.13.0"; none in a build without.
std::optional<std::string_view> runtime_torch_version();

}  // namespace espalier::cli
