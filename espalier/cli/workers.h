#pragma once

// Starting the processes of a run on this host: this program again, once per worker, with RANK, WORLD_SIZE,
// MASTER_ADDR and MASTER_PORT in its environment, as torchrun would.

#include <string>
#include <vector>

namespace espalier::cli {

// This process is one of several already (RANK is set).
bool is_worker();

// Starts `count` workers with these arguments and waits for them. When one fails, the others get ten seconds
// to say why and are then ended. Returns 0, or the exit code of the first that failed (128 + signal if it was
// killed). Throws InputError if a process cannot be started.
int start_workers(int count, const std::vector<std::string>& arguments);

}  // namespace espalier::cli
