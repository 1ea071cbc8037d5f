#pragma once

// This computer, as a process may use it. For the command line and the runtime, which run here; no other part
// of the library looks.

#include <optional>
#include <string>
#include <string_view>

#include "espalier/base/units.h"

namespace espalier {

struct Host {
  std::string processor;     // "AMD EPYC 7B13"
  int processors = 1;        // of the machine, whatever this process may use
  int usable = 1;            // by this process: its affinity (taskset), and its control groups' time
  Bytes memory;              // that this process may use: the machine's, or its control groups' limit
  std::string text() const;  // "AMD EPYC 7B13, 2 cores": the machine alone, the same under taskset
};
Host this_host();

// "200000 100000" of cpu.max: whole processors' worth of time, rounded down, at least 1; nothing for "max …"
// and for what is no limit.
std::optional<int> processors_of_quota(std::string_view cpu_max);

}  // namespace espalier
