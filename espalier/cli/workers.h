#pragma once

// Being one of several workers, and starting them: espalier-runtime, once per worker (app/launcher.h).

#include <atomic>
#include <string>
#include <vector>

namespace espalier::cli {

// This process is one of several already (RANK is set).
bool is_worker();

// Starts `count` workers with these arguments and waits for them. Returns 0, or what the first that failed
// returned (128 + signal if it was killed); who that was stands on standard error. Throws InputError if a
// process cannot be started.
int start_workers(int count, const std::vector<std::string>& arguments);

// From now on Ctrl-C and SIGTERM only set the flag that is returned; a second one ends the process at once
// with exit code 130.
const std::atomic<bool>& watch_for_interrupts();

// Another worker failed and this one's compute does not return (RunOptions::on_stuck): says so to the
// launcher and on standard error, and ends the process. Files are renamed into place when complete, so
// nothing is half written.
[[noreturn]] void end_stuck_worker(const std::string& reason);

// Tells the launcher, ours or torchrun, why this worker stops. True if the launcher will say it to the user.
bool tell_launcher(const std::string& message);

}  // namespace espalier::cli
