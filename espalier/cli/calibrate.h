#pragma once

// The cluster `local` without a cost file: this machine is calibrated once, and remembered in the file that
// Machine::calibration_file names.

#include <string>
#include <vector>

#include "espalier/cli/verbs.h"
#include "espalier/cost/calibration.h"

namespace espalier::cli {

// Where these options plan an exported program for `local` without costs: adds the machine's calibration,
// measured now if none is remembered, with a note among the options' that says so. Does nothing without a
// calibration file.
void calibrate_local(Program& program, JobOptions& options);

// Where this user's calibrations are remembered: espalier/calibration.json in $XDG_CACHE_HOME, else in
// ~/.cache. Empty where neither is set, or ESPALIER_CALIBRATION is "off".
std::string calibration_file_of_user();

// What is in that file; nothing if it cannot be read, since it can be made again.
std::vector<Calibration> remembered_calibrations(const std::string& path);

// How many workers measure at once: a pair, where there are two cores, shows what a neighbour and a message
// cost.
int calibration_workers(const Machine& machine);

}  // namespace espalier::cli
