#include "espalier/report/gantt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "espalier/base/check.h"
#include "espalier/report/device_selection.h"
#include "espalier/report/gantt_parts.h"
#include "espalier/report/table.h"

namespace espalier {
namespace {

__extension__ using Wide = __int128;

struct TerminalHue {  // 256-colour codes
  int light;
  int dark;
};
constexpr std::array<TerminalHue, 8> kTerminalHues{
    {{117, 25}, {223, 130}, {157, 28}, {219, 127}, {159, 30}, {229, 100}, {217, 124}, {189, 61}}};
constexpr std::size_t kMostNamedStages = 32;
constexpr std::array<char, kMemoryCategories> kCategoryLetter{'P', 'G', 'O', 'B', 'A'};
constexpr std::array<int, kMemoryCategories> kCategoryColour{24, 67, 110, 102, 179};

const char* fill_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "░";
    case ActionKind::kBackward:
    case ActionKind::kInputGradient:
      return "▓";
    case ActionKind::kWeightGradient:
    case ActionKind::kRecompute:
      return "▒";
    case ActionKind::kAllReduce:
    case ActionKind::kTieSum:
      return "≡";
    case ActionKind::kUpdate:
      return "=";
  }
  return "?";
}

struct Column {
  std::string text;  // one visible character
  int background = 0;
};

// Which span fills a column: the one that covers most of it, so that short actions do not hide long ones.
std::vector<const Span*> fill_columns(const GanttLayout& layout, const std::vector<const Span*>& spans) {
  std::vector<const Span*> result(static_cast<std::size_t>(layout.columns));
  std::vector<Wide> covered(result.size());
  const Wide end = std::max<std::int64_t>(layout.end.count(), 1);
  for (const Span* span : spans) {
    const Wide a = static_cast<Wide>(span->start.count()) * layout.columns;  // in 1/end of a column
    const Wide b = static_cast<Wide>(span->end.count()) * layout.columns;
    for (Wide c = a / end; c < layout.columns && c * end < b; ++c) {
      const Wide share = std::min(b, (c + 1) * end) - std::max(a, c * end);
      const auto i = static_cast<std::size_t>(c);
      if (4 * share >= end && share > covered[i]) {  // at least a quarter of the column
        covered[i] = share;
        result[i] = span;
      }
    }
  }
  return result;
}

std::string join(const std::vector<Column>& columns, Colour colour) {
  std::string out;
  for (std::size_t i = 0; i < columns.size();) {
    std::size_t j = i;
    std::string run;
    while (j < columns.size() && columns[j].background == columns[i].background) run += columns[j++].text;
    out += painted(run, columns[i].background, colour);
    i = j;
  }
  return out;
}

// Sums of gradients show where the device is idle meanwhile.
void show_sums(const GanttLayout& layout, const std::vector<const Span*>& sums, std::vector<Column>& row) {
  const std::vector<const Span*> filled = fill_columns(layout, sums);
  const Span* before = nullptr;  // shown in the column before
  for (std::size_t c = 0; c < row.size(); ++c) {
    const bool idle = row[c].background == 0 && row[c].text == "·";
    const Span* const sum = idle ? filled[c] : nullptr;
    if (sum != nullptr) {
      const ActionKind kind = sum->action.kind;
      row[c].text = sum == before ? fill_of(kind) : std::string(1, letter(kind));
    }
    before = sum;
  }
}

std::string compute_row(const GanttLayout& layout, const std::vector<const Span*>& spans,
                        const std::vector<const Span*>& sums, Colour colour) {
  std::vector<Column> row(static_cast<std::size_t>(layout.columns), {"·", 0});
  const std::vector<const Span*> filled = fill_columns(layout, spans);
  for (std::size_t begin = 0; begin < filled.size();) {
    std::size_t end = begin;
    while (end < filled.size() && filled[end] == filled[begin]) ++end;
    if (const Span* span = filled[begin]) {
      const bool action = span->kind == SpanKind::kAction;
      const ActionKind kind = span->action.kind;
      const TerminalHue& hue = kTerminalHues[span->action.target() % kTerminalHues.size()];
      const bool light = kind == ActionKind::kForward || kind == ActionKind::kRecompute;
      const int background = !action || once_per_step(kind) ? 250 : light ? hue.light : hue.dark;
      std::string label(1, action ? letter(kind) : span->kind == SpanKind::kSendEndpoint ? 's' : 'r');
      if (action && !once_per_step(kind)) label += std::to_string(span->action.micro_batch);
      const std::size_t room = end - begin;
      // Two digits in two columns would look like another micro-batch: then the letter alone.
      if (label.size() > room) label.resize(room > 1 || once_per_step(kind) ? 1 : 0);
      for (std::size_t c = begin; c < end; ++c) {
        const std::size_t at = c - begin;
        row[c] = {at < label.size() ? std::string(1, label[at]) : action ? fill_of(kind) : "-", background};
      }
    }
    begin = end;
  }
  show_sums(layout, sums, row);
  if (colour == Colour::kAnsi) {
    for (Column& column : row) {
      if (column.background != 0 && static_cast<unsigned char>(column.text[0]) >= 0x80) column.text = " ";
    }
  }
  return join(row, colour);
}

std::string send_row(const GanttLayout& layout, const std::vector<const Span*>& sends, Colour colour) {
  std::string out;
  for (const Span* span : fill_columns(layout, sends)) {
    const bool forward = span && (!span->message || span->message->direction == Message::Direction::kForward);
    out += span ? (forward ? "→" : "←") : " ";
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return dimmed(out, colour);
}

std::string memory_row(const GanttLayout& layout, const Trace& trace, DeviceId device, Colour colour) {
  std::vector<std::int64_t> most(static_cast<std::size_t>(layout.columns));
  std::int64_t now = 0;
  int from = 0;
  const auto hold_until = [&](int to) {
    for (int c = from; c <= std::min(to, layout.columns - 1); ++c) {
      auto& value = most[static_cast<std::size_t>(c)];
      value = std::max(value, now);
    }
    from = std::max(from, to);
  };
  for (const MemorySample& sample : trace.memory) {
    if (sample.device != device) continue;
    hold_until(layout.column(sample.time));
    now = sample.held.total().count();
  }
  hold_until(layout.columns - 1);
  return dimmed(eighths(most), colour);
}

std::string legend(const Trace& trace, const GanttOptions& options) {
  std::set<ActionKind> kinds;
  std::set<std::size_t> stages;
  bool endpoints = false;
  for (const Span& span : trace.spans) {
    if (span.kind == SpanKind::kCollective) kinds.insert(span.action.kind);
    if (span.stream != Stream::kCompute) continue;
    if (span.kind == SpanKind::kAction) {
      kinds.insert(span.action.kind);
      if (!once_per_step(span.action.kind)) stages.insert(span.action.target());
    } else {
      endpoints = true;
    }
  }
  static const std::map<ActionKind, const char*> kNames{
      {ActionKind::kForward, "forward"},
      {ActionKind::kBackward, "backward"},
      {ActionKind::kInputGradient, "input gradient"},
      {ActionKind::kWeightGradient, "weight gradient"},
      {ActionKind::kRecompute, "recompute"},
      {ActionKind::kAllReduce, "sum over replicas, where idle"},
      {ActionKind::kTieSum, "sum over copies, where idle"},
      {ActionKind::kUpdate, "update"}};
  std::string out;
  for (const ActionKind kind : kinds) {
    const char* fill = options.colour == Colour::kAnsi ? "" : fill_of(kind);
    out += fmt::format("{}{} {}   ", letter(kind), fill, kNames.at(kind));
  }
  if (endpoints) out += "s r compute time of sending, receiving   ";
  if (options.transfers) out += "→ ← transfer of activations, gradients   ";
  out += "· idle";
  if (options.colour == Colour::kAnsi) {
    out += '\n';
    std::size_t named = 0;
    for (const std::size_t stage : stages) {
      if (named++ == kMostNamedStages) break;
      const TerminalHue& hue = kTerminalHues[stage % kTerminalHues.size()];
      out += painted(" F ", hue.light, options.colour) + painted(" B ", hue.dark, options.colour) + ' ' +
             (stage < trace.stages.size() ? trace.stages[stage] : std::to_string(stage)) + "   ";
    }
    if (stages.size() > kMostNamedStages) out += fmt::format("and {} more", stages.size() - kMostNamedStages);
  }
  return out + '\n';
}

}  // namespace

std::string text_gantt(const Trace& trace, const GanttOptions& options) {
  std::vector<std::vector<const Span*>> compute(trace.devices.size()), sends(trace.devices.size()),
      sums(trace.devices.size());
  bool any = false;
  for (const Span& span : trace.spans) {
    ESP_CHECK(span.device.index() < trace.devices.size(), span.device);
    if (span.stream == Stream::kCompute) {
      compute[span.device.index()].push_back(&span);
      any = true;
    } else if (span.stream == Stream::kSend) {
      sends[span.device.index()].push_back(&span);
    } else if (span.stream == Stream::kCollective) {
      sums[span.device.index()].push_back(&span);
    }
  }
  std::vector<double> busy_share;
  for (const Duration busy : busy_time(trace)) {
    busy_share.push_back(trace.iteration.count() > 0 ? static_cast<double>(busy.count()) /
                                                           static_cast<double>(trace.iteration.count())
                                                     : 0);
  }
  std::vector<DeviceId> candidates;
  for (std::size_t d = 0; d < trace.devices.size(); ++d) {
    if (!any || !compute[d].empty()) candidates.push_back(DeviceId(d));
  }
  const DeviceSelection devices = select_devices(trace, candidates, busy_share);
  const GanttLayout layout = gantt_layout(trace.devices, trace.iteration, options);

  std::string out = gantt_axis(layout);
  const std::string indent(layout.name_width + 2, ' ');
  const std::vector<MemoryByCategory> peaks = peak_memory(trace);
  for (const DeviceId device : devices.shown) {
    const std::size_t d = device.index();
    out += trace.devices[d] + std::string(layout.name_width - display_width(trace.devices[d]) + 2, ' ') +
           compute_row(layout, compute[d], sums[d], options.colour) +
           fmt::format("  {:5.1f} % busy\n", 100 * busy_share[d]);
    if (options.transfers && !sends[d].empty()) {
      out += indent + send_row(layout, sends[d], options.colour) + '\n';
    }
    if (options.memory) {
      out += indent + memory_row(layout, trace, device, options.colour) + "  peak " +
             to_text(peaks[d].total()) + '\n';
    }
  }
  out += hidden_lanes_text(devices.hidden, busy_share);
  return out + legend(trace, options);
}

std::string memory_bars(const Trace& trace, const GanttOptions& options) {
  const std::vector<MemoryByCategory> peaks = peak_memory(trace);
  std::size_t name_width = 0;
  for (const std::string& name : trace.devices) name_width = std::max(name_width, display_width(name));
  const int columns = std::max(options.width - static_cast<int>(name_width) - 2 - 40, 10);
  std::string out;
  const DeviceSelection devices = fullest_devices(trace);
  for (const DeviceId device : devices.shown) {
    const std::size_t d = device.index();
    const std::int64_t peak = peaks[d].total().count(), capacity = trace.capacity[d].count();
    const std::int64_t whole = std::max<std::int64_t>({peak, capacity, 1});
    std::string bar;
    Wide sum = 0;
    int filled = 0;
    for (std::size_t c = 0; c < kMemoryCategories; ++c) {
      sum += peaks[d].bytes[c].count();
      const int to = static_cast<int>((sum * columns + whole / 2) / whole);
      bar += painted(std::string(static_cast<std::size_t>(to - filled), kCategoryLetter[c]),
                     kCategoryColour[c], options.colour);
      filled = to;
    }
    for (; filled < columns; ++filled) bar += "·";
    const std::string verdict =
        peak > capacity ? fmt::format("TOO MUCH by {}", to_text(Bytes(peak - capacity)))
        : peak * 100 < whole && peak > 0
            ? "< 1 %"
            : fmt::format("{:.0f} %", 100.0 * static_cast<double>(peak) / static_cast<double>(whole));
    out += trace.devices[d] + std::string(name_width - display_width(trace.devices[d]) + 2, ' ') + bar +
           fmt::format("  {:>9} of {:>9}  {}\n", to_text(Bytes(peak)), to_text(Bytes(capacity)), verdict);
  }
  out += hidden_memory_text(trace, devices.hidden);
  std::string key;
  for (std::size_t c = 0; c < kMemoryCategories; ++c) {
    const auto category = static_cast<MemoryCategory>(c);
    key += painted(std::string(1, kCategoryLetter[c]), kCategoryColour[c], options.colour) + ' ' +
           std::string(to_text(category)) + (category == MemoryCategory::kBuffers ? ", frozen   " : "   ");
  }
  return out + key + "· free\n";
}

}  // namespace espalier
