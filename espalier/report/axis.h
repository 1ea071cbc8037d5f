#pragma once

// Round places on a time axis: 1, 2 or 5 times a power of ten of one unit.

#include <string>
#include <vector>

#include "espalier/base/units.h"

namespace espalier {

struct Tick {
  Duration time;
  std::string label;  // "15"; the unit stands once, in Axis
};
struct Axis {
  std::vector<Tick> ticks;  // from 0 to at most the end, at most `max_ticks` (≥ 2) of them
  std::string unit;         // "ms"
};
Axis time_axis(Duration end, int max_ticks);

}  // namespace espalier
