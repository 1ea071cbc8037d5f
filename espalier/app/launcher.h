#pragma once

// Starts the workers of a run on this host and watches over them: the variables of torchrun, own process
// groups, one message that names whoever failed first. Needs no libtorch.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "espalier/base/units.h"

namespace espalier {

struct LaunchOptions {
  std::uint32_t workers = 1;
  std::vector<std::string> command;  // argv of every worker; [0] is the program's path
  // In place of the command, if set: each worker is a copy of this process, which calls it and ends with what
  // it returned. Libraries are loaded once for all of them. Only for a process with one thread; not to throw.
  std::function<int()> copy;
  Duration grace = milliseconds(8'000);    // from the first failure until whoever is left is killed
  Duration stopped = milliseconds(4'000);  // a worker alone that is stopped (SIGSTOP) for longer has failed
  std::function<void(const std::string&)> say;  // one line for people; may be empty
};

// Runs `workers` processes of the command, or copies of this one, with RANK, LOCAL_RANK, WORLD_SIZE,
// LOCAL_WORLD_SIZE, MASTER_ADDR (loopback), MASTER_PORT, OMP_NUM_THREADS=1 unless set, ESPALIER_LAUNCHER=1
// and TORCHELASTIC_ERROR_FILE (in a folder that is removed again). Standard input is /dev/null, standard
// output and error are inherited.
//
// Copies are told apart by their name in /proc/PID/comm, "espalier:RANK"; their /proc/PID/environ is this
// process's.
//
// Nobody else gets the port: a socket is bound to it, which worker 0 inherits under the number
// ESPALIER_STORE_SOCKET. Other processes may launch at the same time.
//
// SIGINT and SIGTERM are passed on once to each worker; a second SIGINT kills them. SIGTSTP (Ctrl-Z) stops
// the workers with all that they started, then this process; when it goes on, they do. While all are stopped,
// no time passes for them.
//
// Returns when no worker is left: 0 if all returned 0; 130 if all that failed were interrupted; else the
// first failure's exit status, or 128 + its signal. Before that it has said who failed first and with what.
// Throws InputError if a worker cannot be started, then nothing is left running.
int launch(const LaunchOptions& options);

// What a worker tells its launcher, ours or torchrun, of its failure: {"message": {"message": …}} in
// $TORCHELASTIC_ERROR_FILE. Does nothing if that is not set; never throws.
void write_error_file(const std::string& message) noexcept;

}  // namespace espalier
