#include "espalier/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "espalier/base/check.h"
#include "espalier/report/axis.h"
#include "espalier/report/svg_parts.h"
#include "espalier/report/table.h"

namespace espalier {
namespace {

// By MemoryCategory. What is always held in blues, what comes and goes in amber.
constexpr std::array<const char*, kMemoryCategories> kCategoryFill{"#486581", "#7b97b3", "#a9bdd1", "#8a94a0",
                                                                   "#e2a44f"};

constexpr double kLeft = 132, kRight = 28, kTop = 24;
constexpr double kLane = 36, kLaneGap = 12, kLink = 7, kLinkGap = 2, kMemory = 58, kMemoryGap = 14;

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20) out += c;
    }
  }
  return out;
}

// "123.4" without a trailing ".0": coordinates are most of the file.
std::string number(double value) {
  std::string text = fmt::format("{:.2f}", value);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string style(SvgOptions::Theme theme) {
  const std::string light =
      ".bg{fill:#ffffff}.t{fill:#17202a}.s{fill:#5b6775}.lane{fill:#eef2f6}.wire{fill:#f5f7fa}"
      ".grid{stroke:#d8dfe6}.cap{stroke:#c0392b}.capt{fill:#c0392b}.wait{fill:#c3ccd6}.once{fill:#8b97a5}";
  const std::string dark =
      ".bg{fill:#0f1620}.t{fill:#e6edf3}.s{fill:#93a1b0}.lane{fill:#1b2531}.wire{fill:#161f2a}"
      ".grid{stroke:#2a3644}.cap{stroke:#ff7b6b}.capt{fill:#ff7b6b}.wait{fill:#3a4858}.once{fill:#76859a}";
  std::string out =
      "<style>text{font-family:Inter,'Segoe UI','Helvetica Neue',Arial,'DejaVu Sans',sans-serif}";
  out += hue_classes();
  for (std::size_t i = 0; i < kMemoryCategories; ++i)
    out += fmt::format(".m{}{{fill:{}}}", i, kCategoryFill[i]);
  out +=
      ".w{opacity:.62}.r{opacity:.55}.lf{fill:#16324f}.lb{fill:#ffffff}.l{font-size:12px;text-anchor:middle}"
      ".grid{stroke-width:1}.cap{stroke-width:1.2;stroke-dasharray:5 4}.h{font-size:20px;font-weight:600}"
      ".n{font-size:14px;font-weight:600}.d{font-size:12px}.e{text-anchor:end}.c{text-anchor:middle}";
  if (theme == SvgOptions::Theme::kDark) {
    out += dark;
  } else {
    out += light;
    if (theme == SvgOptions::Theme::kAuto) out += "@media (prefers-color-scheme:dark){" + dark + "}";
  }
  return out + "</style>\n";
}

std::string name_of(const std::vector<std::string>& names, std::size_t index) {
  return index < names.size() ? names[index] : "#" + std::to_string(index);
}

std::string times(const Span& span) {
  return fmt::format("{} to {} ({})", to_text(span.start), to_text(span.end), to_text(span.end - span.start));
}

std::string title_of(const Trace& trace, const Span& span) {
  const std::string stage = span.action.kind == ActionKind::kTieSum
                                ? std::string("tied parameter")
                                : name_of(trace.stages, span.action.target());
  std::string out;
  switch (span.kind) {
    case SpanKind::kAction:
    case SpanKind::kCollective:
      out = std::string(1, letter(span.action.kind));
      if (!once_per_step(span.action.kind)) out += std::to_string(span.action.micro_batch);
      out += ' ' + stage;
      break;
    default:
      out = span.kind == SpanKind::kSendEndpoint      ? "sending"
            : span.kind == SpanKind::kReceiveEndpoint ? "receiving"
                                                      : "transfer of";
      if (span.message) out += ' ' + name_of(trace.tensors, span.message->crossing);
      if (span.peer) {
        out += (span.kind == SpanKind::kReceiveEndpoint ? " from " : " to ") +
               name_of(trace.devices, span.peer->index());
      }
      if (span.bytes.count() > 0) out += ", " + to_text(span.bytes);
  }
  return escape(out + ": " + times(span));
}

class Drawing {
 public:
  Drawing(std::span<const SvgPanel> panels, const SvgOptions& options) : panels_(panels), options_(options) {
    for (const SvgPanel& panel : panels) end_ = std::max(end_, panel.trace.iteration);
    end_ = std::max(end_, Duration(1));
  }

  std::string draw() {
    y_ = kTop;
    for (const SvgPanel& panel : panels_) draw_panel(panel);
    if (options_.memory) memory_legend();
    const double height = y_ + 8;
    return fmt::format(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
               "height=\"{1}\" "
               "style=\"max-width:100%;height:auto\" role=\"img\">\n",
               options_.width, number(height)) +
           style(options_.theme) +
           fmt::format("<rect class=\"bg\" width=\"{}\" height=\"{}\" rx=\"8\"/>\n", options_.width,
                       number(height)) +
           body_ + "</svg>\n";
  }

 private:
  double x(Duration time) const {
    return kLeft + (options_.width - kLeft - kRight) * static_cast<double>(time.count()) /
                       static_cast<double>(end_.count());
  }

  void text(double at_x, double at_y, std::string_view classes, std::string_view content) {
    body_ += fmt::format("<text class=\"{}\" x=\"{}\" y=\"{}\">{}</text>\n", classes, number(at_x),
                         number(at_y), escape(content));
  }
  void rect(double at_x, double at_y, double w, double h, std::string_view classes, double radius,
            std::string_view title = {}) {
    body_ += fmt::format("<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"", classes,
                         number(at_x), number(at_y), number(w), number(h));
    if (radius > 0) body_ += fmt::format(" rx=\"{}\"", number(radius));
    body_ += title.empty() ? std::string("/>\n") : fmt::format("><title>{}</title></rect>\n", title);
  }

  // A row of swatches and names, wrapped at the right margin. `classes` are one or two fills.
  struct LegendItem {
    std::vector<std::string> classes;
    std::string name;
  };
  void legend(const std::vector<LegendItem>& items) {
    double at = kLeft;
    for (const LegendItem& item : items) {
      const double length = 16.0 * static_cast<double>(item.classes.size()) + 8 +
                            6.6 * static_cast<double>(display_width(item.name)) + 16;
      if (at + length > options_.width - kRight && at > kLeft) {
        at = kLeft;
        y_ += 20;
      }
      for (std::size_t i = 0; i < item.classes.size(); ++i) {
        rect(at + 15.0 * static_cast<double>(i), y_ - 10, 14, 12, item.classes[i], 2);
      }
      text(at + 15.0 * static_cast<double>(item.classes.size()) + 5, y_, "s d", item.name);
      at += length;
    }
    y_ += 20;
  }

  void draw_panel(const SvgPanel& panel) {
    const Trace& trace = panel.trace;
    text(kLeft, y_ + 14, "t h", panel.title);
    std::string subtitle = panel.subtitle;
    if (subtitle.empty()) {
      subtitle = fmt::format("{} per iteration, {:.1f} % idle, {}", to_text(trace.iteration),
                             100 * bubble_ratio(trace),
                             trace.origin == Trace::Origin::kSimulated ? "simulated" : "measured");
    }
    text(kLeft, y_ + 35, "s d", subtitle);
    y_ += 58;
    stage_legend(trace);
    y_ += 6;
    const double top = y_;
    const std::size_t grid_at = body_.size();
    for (std::size_t d = 0; d < trace.devices.size(); ++d) device_lane(trace, DeviceId(d));
    if (options_.memory && !trace.memory.empty()) {
      y_ += 6;
      const std::vector<MemoryByCategory> peaks = peak_memory(trace);
      for (std::size_t d = 0; d < trace.devices.size(); ++d) memory_lane(trace, DeviceId(d), peaks[d]);
    }
    const double bottom = y_ - 4;
    axis(bottom);
    body_.insert(grid_at, grid(top - 4, bottom));
    y_ += 30;
  }

  void stage_legend(const Trace& trace) {
    std::set<ActionKind> kinds;
    for (const Span& span : trace.spans) {
      if (span.kind == SpanKind::kAction) kinds.insert(span.action.kind);
    }
    const bool halves = kinds.count(ActionKind::kInputGradient) > 0;
    std::vector<LegendItem> items;
    for (std::size_t s = 0; s < trace.stages.size(); ++s) {
      const std::size_t hue = s % kHues;
      items.push_back({{fmt::format("f{}", hue), fmt::format("b{}", hue)}, trace.stages[s]});
      if (halves) items.back().classes.push_back(fmt::format("b{} w", hue));
    }
    items.push_back({{}, halves ? "(forward, input and weight gradient)" : "(forward, backward)"});
    if (std::any_of(kinds.begin(), kinds.end(), once_per_step)) items.push_back({{"once"}, "once per step"});
    legend(items);
  }

  std::string grid(double top, double bottom) const {
    std::string out;
    for (const Tick& tick : axis_.ticks) {
      out += fmt::format("<line class=\"grid\" x1=\"{0}\" x2=\"{0}\" y1=\"{1}\" y2=\"{2}\"/>\n",
                         number(x(tick.time)), number(top), number(bottom));
    }
    return out;
  }

  void axis(double bottom) {
    axis_ = time_axis(end_, 12);
    for (std::size_t i = 0; i < axis_.ticks.size(); ++i) {
      const bool last = i + 1 == axis_.ticks.size();
      text(x(axis_.ticks[i].time), bottom + 18, "s d c",
           axis_.ticks[i].label + (last ? " " + axis_.unit : std::string()));
    }
    y_ = bottom + 26;
  }

  void device_lane(const Trace& trace, DeviceId device) {
    std::vector<const Span*> compute, sums;
    std::map<DeviceId, std::vector<const Span*>> wires;
    Duration busy;
    for (const Span& span : trace.spans) {
      if (span.device != device) continue;
      if (span.stream == Stream::kCompute) {
        compute.push_back(&span);
        busy += span.end - span.start;
      } else if (span.kind == SpanKind::kCollective) {
        sums.push_back(&span);
      } else if (span.kind == SpanKind::kTransfer && span.peer) {
        wires[*span.peer].push_back(&span);
      }
    }
    text(16, y_ + 16, "t n", name_of(trace.devices, device.index()));
    text(16, y_ + 31, "s d",
         fmt::format("{:.0f} % busy", trace.iteration.count() > 0
                                          ? 100.0 * static_cast<double>(busy.count()) /
                                                static_cast<double>(trace.iteration.count())
                                          : 0.0));
    rect(kLeft, y_, x(trace.iteration) - kLeft, kLane, "lane", 4);
    for (const Span* span : compute) bar(trace, *span);
    y_ += kLane + 3;
    if (!sums.empty()) {
      thin_lane(trace, "sums");
      for (const Span* span : sums) {
        const double from = x(span->start);
        rect(from, y_, std::max(x(span->end) - from, 0.8), kLink, "once", 1.5, title_of(trace, *span));
      }
      y_ += kLink + kLinkGap;
    }
    if (options_.links) {
      if (wires.size() > 4) {  // one lane for all: the titles say where each goes
        std::vector<const Span*> all;
        for (const auto& [peer, spans] : wires) all.insert(all.end(), spans.begin(), spans.end());
        wires = {{device, std::move(all)}};
      }
      for (const auto& [peer, spans] : wires) {
        thin_lane(trace, "to " + (peer == device ? "all" : name_of(trace.devices, peer.index())));
        for (const Span* span : spans) wire(trace, *span);
        y_ += kLink + kLinkGap;
      }
    }
    y_ += kLaneGap;
  }

  void thin_lane(const Trace& trace, const std::string& name) {
    rect(kLeft, y_, x(trace.iteration) - kLeft, kLink, "wire", 2);
    body_ += fmt::format("<text class=\"s e\" style=\"font-size:9px\" x=\"{}\" y=\"{}\">{}</text>\n",
                         number(kLeft - 6), number(y_ + kLink - 0.5), escape(name));
  }

  void bar(const Trace& trace, const Span& span) {
    const double from = x(span.start), width = std::max(x(span.end) - from, 0.4);
    const std::size_t hue = span.action.target() % kHues;
    const ActionKind kind = span.action.kind;
    std::string classes;
    bool on_dark = false;
    if (span.kind != SpanKind::kAction) {
      classes = "wait";
    } else if (once_per_step(kind)) {
      classes = "once";
      on_dark = true;
    } else if (kind == ActionKind::kForward || kind == ActionKind::kRecompute) {
      classes = fmt::format("f{}{}", hue, kind == ActionKind::kRecompute ? " r" : "");
    } else {
      classes = fmt::format("b{}{}", hue, kind == ActionKind::kWeightGradient ? " w" : "");
      on_dark = true;
    }
    const double gap = width > 4 ? 0.6 : 0;
    rect(from + gap / 2, y_ + 2, width - gap, kLane - 4, classes, std::min(3.0, width / 4),
         title_of(trace, span));
    if (span.kind != SpanKind::kAction) return;
    std::string label(1, letter(kind));
    if (!once_per_step(kind)) label += std::to_string(span.action.micro_batch);
    if (width < 7.5 * static_cast<double>(label.size()) + 3 && !once_per_step(kind)) label.erase(0, 1);
    if (width < 7.5 * static_cast<double>(label.size()) + 2) return;
    body_ += fmt::format("<text class=\"l {}\" x=\"{}\" y=\"{}\">{}</text>\n", on_dark ? "lb" : "lf",
                         number(from + width / 2), number(y_ + kLane / 2 + 4.5), label);
  }

  void wire(const Trace& trace, const Span& span) {
    const double from = x(span.start), width = std::max(x(span.end) - from, 0.8);
    const bool forward = !span.message || span.message->direction == Message::Direction::kForward;
    rect(from, y_, width, kLink, fmt::format("{}{}", forward ? 'f' : 'b', span.action.target() % kHues), 1.5,
         title_of(trace, span));
  }

  void memory_lane(const Trace& trace, DeviceId device, const MemoryByCategory& peak) {
    const Bytes capacity = device.index() < trace.capacity.size() ? trace.capacity[device.index()] : Bytes();
    const double most = static_cast<double>(std::max<std::int64_t>(peak.total().count(), 1));
    const double limit = static_cast<double>(capacity.count());
    const bool shown = limit > 0 && limit < 2.5 * most;  // else the curve would be flat
    const double scale = (kMemory - 4) / (shown ? std::max(most, limit) * 1.04 : most * 1.04);
    const double base = y_ + kMemory;

    text(16, y_ + 16, "t n", name_of(trace.devices, device.index()));
    text(16, y_ + 32, "s d", "peak " + to_text(peak.total()));
    text(16, y_ + 47, "s d", "of " + to_text(capacity));
    rect(kLeft, y_, x(trace.iteration) - kLeft, kMemory, "wire", 4);

    std::vector<const MemorySample*> samples;
    for (const MemorySample& sample : trace.memory) {
      if (sample.device == device) samples.push_back(&sample);
    }
    // Stacked step curves, the last category first, so that lower ones are painted over it.
    for (std::size_t top = kMemoryCategories; top-- > 0;) {
      std::string path;
      double last = -1;
      for (std::size_t i = 0; i < samples.size(); ++i) {
        std::int64_t held = 0;
        for (std::size_t c = 0; c <= top; ++c) held += samples[i]->held.bytes[c].count();
        const double height = base - static_cast<double>(held) * scale;
        if (i > 0 && height == last) continue;
        const std::string at = number(x(samples[i]->time));
        path += path.empty() ? fmt::format("M{} {}V{}", at, number(base), number(height))
                             : fmt::format("H{}V{}", at, number(height));
        last = height;
      }
      if (path.empty()) continue;
      path += fmt::format("H{}V{}Z", number(x(trace.iteration)), number(base));
      body_ += fmt::format("<path class=\"m{}\" d=\"{}\"><title>{}: {} at the peak</title></path>\n", top,
                           path, to_text(static_cast<MemoryCategory>(top)), to_text(peak.bytes[top]));
    }
    if (shown) {
      const double at = base - limit * scale;
      body_ += fmt::format("<line class=\"cap\" x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/>\n", number(kLeft),
                           number(x(trace.iteration)), number(at), number(at));
      if (most > limit) text(x(trace.iteration) - 6, at + 13, "capt d e", "does not fit");
    }
    y_ += kMemory + kMemoryGap;
  }

  void memory_legend() {
    std::vector<LegendItem> items;
    for (std::size_t c = 0; c < kMemoryCategories; ++c) {
      items.push_back({{fmt::format("m{}", c)}, std::string(to_text(static_cast<MemoryCategory>(c)))});
    }
    items.push_back({{}, "(memory over time; dashed line: the device's capacity, where it is near)"});
    legend(items);
  }

  std::span<const SvgPanel> panels_;
  const SvgOptions& options_;
  Duration end_;
  Axis axis_;
  std::string body_;
  double y_ = 0;
};

}  // namespace

std::string svg_timeline(std::span<const SvgPanel> panels, const SvgOptions& options) {
  ESP_CHECK(!panels.empty());
  return Drawing(panels, options).draw();
}

}  // namespace espalier
