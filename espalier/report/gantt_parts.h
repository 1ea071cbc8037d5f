#pragma once

// What text Gantts share, whatever they draw (gantt.cc, placement_gantt.cc).

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "espalier/base/ids.h"
#include "espalier/report/gantt.h"

namespace espalier {

// Colour 0 = none. Text on light backgrounds is black, on dark ones white.
std::string painted(const std::string& text, int background, Colour colour);
std::string dimmed(const std::string& text, Colour colour);

struct GanttLayout {
  std::size_t name_width = 0;
  int columns = 0;
  Duration end;
  int column(Duration time) const;  // may be `columns` at the end
};

// With room for names on the left and 15 columns on the right.
GanttLayout gantt_layout(std::span<const std::string> devices, Duration end, const GanttOptions& options);

// The time axis above the lanes, with its line end.
std::string gantt_axis(const GanttLayout& layout);

// Eighths of the largest of them, and of 1.
std::string eighths(std::span<const std::int64_t> values);

// "480 more devices are 12.0 to 88.0 % busy\n"; nothing if none is hidden.
std::string hidden_lanes_text(std::span<const DeviceId> hidden, std::span<const double> busy_share);

}  // namespace espalier
