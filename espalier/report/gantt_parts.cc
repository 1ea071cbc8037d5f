#include "espalier/report/gantt_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "espalier/report/axis.h"
#include "espalier/report/table.h"

namespace espalier {
namespace {

__extension__ using WideCount = __int128;

}  // namespace

std::string painted(const std::string& text, int background, Colour colour) {
  if (colour == Colour::kNever || background == 0 || text.empty()) return text;
  const bool light = background >= 150 || background == 117 || background == 110;
  return fmt::format("\x1b[48;5;{};38;5;{}m{}\x1b[0m", background, light ? 16 : 231, text);
}
std::string dimmed(const std::string& text, Colour colour) {
  return colour == Colour::kNever ? text : "\x1b[38;5;242m" + text + "\x1b[0m";
}

int GanttLayout::column(Duration time) const {
  return static_cast<int>(static_cast<WideCount>(time.count()) * columns /
                          std::max<std::int64_t>(end.count(), 1));
}

GanttLayout gantt_layout(std::span<const std::string> devices, Duration end, const GanttOptions& options) {
  GanttLayout layout{0, 0, end};
  for (const std::string& name : devices)
    layout.name_width = std::max(layout.name_width, display_width(name));
  layout.columns = std::max(options.width, 40) - static_cast<int>(layout.name_width) - 2 - 15;
  layout.columns = std::max(layout.columns, 10);
  return layout;
}

std::string gantt_axis(const GanttLayout& layout) {
  const Axis axis = time_axis(layout.end, layout.columns / 8 + 1);
  std::string labels(layout.name_width + 2, ' ');
  const std::size_t start = labels.size();
  for (const Tick& tick : axis.ticks) {
    const auto at = start + static_cast<std::size_t>(layout.column(tick.time));
    if (display_width(labels) > at) continue;  // no room
    labels += std::string(at - display_width(labels), ' ') + tick.label;
  }
  return labels + ' ' + axis.unit + '\n';
}

std::string eighths(std::span<const std::int64_t> values) {
  static constexpr std::array<const char*, 9> kEighths{" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::int64_t most = 1;
  for (const std::int64_t value : values) most = std::max(most, value);
  std::string out;
  for (const std::int64_t value : values) {
    out += kEighths[static_cast<std::size_t>((static_cast<WideCount>(value) * 8 + most - 1) / most)];
  }
  return out;
}

std::string hidden_lanes_text(std::span<const DeviceId> hidden, std::span<const double> busy_share) {
  if (hidden.empty()) return {};
  double least = busy_share[hidden.front().index()], greatest = least;
  for (const DeviceId device : hidden) {
    least = std::min(least, busy_share[device.index()]);
    greatest = std::max(greatest, busy_share[device.index()]);
  }
  const std::string from = fmt::format("{:.1f}", 100 * least), to = fmt::format("{:.1f}", 100 * greatest);
  return fmt::format("{} more device{} {} % busy\n", hidden.size(), hidden.size() == 1 ? " is" : "s are",
                     from == to ? from : from + " to " + to);
}

}  // namespace espalier
