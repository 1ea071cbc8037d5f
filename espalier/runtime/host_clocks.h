#pragma once

// The clocks of the workers' hosts against worker 0's. Includes libtorch; runtime/ only.

#include <functional>
#include <vector>

#include "espalier/runtime/clock_offset.h"
#include "espalier/runtime/workers.h"

namespace espalier {

using ReadClock = std::function<Duration()>;

Duration steady_time();

// By rank, how much more that worker's clock shows than worker 0's. Workers that read one clock
// (Acquaintance) ask once, the lowest rank for all; nobody asks where all read worker 0's. `read` is the
// clock with which this worker took the times that are to be compared. Collective.
std::vector<ClockOffset> measure_clocks(Workers& workers, const ReadClock& read);

// "clock offset host1 12us ±3us", for each host whose clock is not worker 0's: `clocks` by rank.
std::vector<std::string> clock_notes(const Workers& workers, const std::vector<ClockOffset>& clocks);

}  // namespace espalier
