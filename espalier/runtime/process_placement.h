#pragma once

// The cores and the memory of this process. The runtime's functions leave both as they are; who owns the
// process, such as the command line, prepares it for speed.

#include <cstdint>
#include <vector>

#include "espalier/runtime/runtime.h"

namespace espalier {

// The worker's equal share of the cores it may use, in their order; empty where there are fewer than
// `threads` for each worker of the host.
std::vector<int> own_cores(const std::vector<int>& allowed, const World& world, std::uint32_t threads);

// Keeps this process to its own cores. The kernel often puts a thread that a message wakes where the message
// came in, beside another worker's busy thread, and it waits there for some milliseconds: a fifth of a step
// of small actions. Does nothing where whoever started this process has bound it already. To be called before
// other threads start.
void keep_to_own_cores(const World& world, std::uint32_t threads);

// Memory that was freed stays with the process: page faults would cost 15 to 19 % of a step.
void keep_freed_memory();

// All of the above.
void prepare_process(const World& world, std::uint32_t threads);

}  // namespace espalier
