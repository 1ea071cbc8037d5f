#pragma once

// Being one of several workers, and starting them (app/launcher.h).

#include <atomic>
#include <string>
#include <vector>

#include "espalier/cli/verbs.h"

namespace espalier::cli {

// This process is one of several already (RANK is set).
bool is_worker();

// Starts `count` workers with these arguments and waits for them. Returns 0, or what the first that failed
// returned (128 + signal if it was killed); who that was stands on standard error. Throws InputError if a
// process cannot be started.
//
// A worker is a copy of this process where this is espalier-runtime: libtorch, whose loading takes a quarter
// of a second of processor time, is loaded once for all workers, and they share its pages. It is
// espalier-runtime started anew where this is espalier; where libtorch is one for CUDA, whose driver does not
// outlive a copy; where this process has more threads than one; and where libtorch would give each thread all
// cores, since nobody set OMP_NUM_THREADS before it was loaded (hand_over does).
int start_workers(const Program& program, int count, const std::vector<std::string>& arguments);

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
