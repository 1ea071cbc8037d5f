#include "espalier/report/axis.h"

#include <fmt/format.h>

#include <algorithm>

namespace espalier {

Axis time_axis(Duration end, int max_ticks) {
  struct Unit {
    const char* name;
    std::int64_t size;
  };
  static constexpr Unit kUnits[] = {{"s", 1'000'000'000}, {"ms", 1'000'000}, {"µs", 1'000}, {"ns", 1}};
  Axis axis;
  const std::int64_t length = std::max<std::int64_t>(end.count(), 1);
  const std::int64_t intervals = std::max(max_ticks - 1, 1);
  std::int64_t step = 1;
  for (int leading = 1; length / step > intervals;) {  // 1 2 5 10 20 50 …
    step = leading == 2 ? step / 2 * 5 : step * 2;
    leading = leading == 1 ? 2 : leading == 2 ? 5 : 1;
  }
  // The largest unit in which the whole axis is at least 1 keeps labels short: 0.5 s, not 500 ms of 2 s.
  Unit unit = kUnits[3];
  for (const Unit& candidate : kUnits) {
    if (length >= candidate.size) {
      unit = candidate;
      break;
    }
  }
  axis.unit = unit.name;
  for (std::int64_t time = 0; time <= length; time += step) {
    axis.ticks.push_back(
        {Duration(time), fmt::format("{:g}", static_cast<double>(time) / static_cast<double>(unit.size))});
  }
  return axis;
}

}  // namespace espalier
