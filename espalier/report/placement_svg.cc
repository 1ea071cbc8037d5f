// All shapes are made of columns half a unit wide: what takes most of a column's time fills it, and columns
// side by side are one box. So the file has at most as many boxes as the drawing has columns and devices.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>

#include "espalier/placement/message_uses.h"
#include "espalier/report/axis.h"
#include "espalier/report/placement_picture.h"
#include "espalier/report/svg_parts.h"
#include "espalier/report/table.h"

namespace espalier {
namespace {

constexpr double kLeftMargin = 132, kRightMargin = 28;
constexpr double kDeviceHeight = 36, kWayHeight = 6, kHeldHeight = 58;
constexpr double kColumn = 0.5;
constexpr std::size_t kMostArrows = 200;
constexpr double kArrowHead = 4;
constexpr std::size_t kMostModules = 16;  // with colours of their own, as far as their paths can be cut

// "12.5", "12": coordinates are most of the file.
std::string short_number(double value) {
  std::string text = fmt::format("{:.1f}", value);
  if (text.back() == '0') text.resize(text.size() - 2);
  return text;
}

std::string cut_path(const std::string& path, std::size_t parts) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < parts; ++i) {
    at = path.find('.', i == 0 ? 0 : at + 1);
    if (at == std::string::npos) return path;
  }
  return path.substr(0, at);
}

enum class Tone : std::uint8_t { kForward, kBackward, kUpdate };

struct BoxKey {
  std::size_t module = 0;
  Tone tone = Tone::kForward;
  friend auto operator<=>(const BoxKey&, const BoxKey&) = default;
};

class PlacementDrawing {
 public:
  PlacementDrawing(const PlacementPicture& picture, int width) : p_(picture), width_(width) {
    end_ = std::max(p_.timeline.evaluated.time, Duration(1));
    for (const placement::Timeline::Message& message : p_.timeline.messages)
      end_ = std::max(end_, message.arrival);
    columns_ = static_cast<std::size_t>((width_ - kLeftMargin - kRightMargin) / kColumn);
    axis_ = time_axis(end_, 12);
    name_modules();
  }

  std::string run() {
    heading();
    const double top = y_;
    const std::size_t grid_at = body_.size();
    for (std::size_t d = 0; d < p_.instance.devices(); ++d) device_lane(DeviceId(d));
    const std::string about_arrows = arrows();
    y_ += 6;
    const auto curves = placement::held_over_time(p_.instance, p_.rules, p_.assignment, p_.timeline);
    for (std::size_t d = 0; d < curves.size(); ++d) memory_lane(DeviceId(d), curves[d]);
    body_.insert(grid_at, grid(top - 4, y_ - 6));
    for (std::size_t i = 0; i < axis_.ticks.size(); ++i) {
      const std::string unit = i + 1 == axis_.ticks.size() ? " " + axis_.unit : "";
      text(x(axis_.ticks[i].time), y_ + 12, "s d c", axis_.ticks[i].label + unit);
    }
    y_ += 40;
    text(kLeftMargin, y_, "s d",
         "Memory held over time; dashed: the device's limit, where it is near. Thin lanes: what a device "
         "sends.");
    y_ += 17;
    text(kLeftMargin, y_, "s d", about_arrows);
    y_ += 22;
    return head() + body_ + "</svg>\n";
  }

 private:
  const std::string& device_name(DeviceId device) const { return p_.cluster.device(device).name; }
  double x(Duration time) const {
    return kLeftMargin + static_cast<double>(columns_) * kColumn * static_cast<double>(time.count()) /
                             static_cast<double>(end_.count());
  }
  double column_of(Duration time) const { return (x(time) - kLeftMargin) / kColumn; }

  // Modules as deep as there are colours enough, numbered by first operator.
  void name_modules() {
    std::vector<std::size_t> of_operator;
    for (std::size_t parts = 1; parts <= 6; ++parts) {
      std::vector<std::string> names;
      std::map<std::string, std::size_t> numbers;
      std::vector<std::size_t> of;
      for (const Operator& op : p_.graph.operators()) {
        const std::string name = op.module_path.empty() ? "no module" : cut_path(op.module_path, parts);
        const auto [at, added] = numbers.emplace(name, names.size());
        if (added) names.push_back(name);
        of.push_back(at->second);
      }
      if (parts > 1 && (names.size() > kMostModules || names.size() == modules_.size())) break;
      modules_ = std::move(names);
      of_operator = std::move(of);
    }
    for (std::size_t t = 0; t < p_.instance.tasks(); ++t) {
      const OperatorId id = p_.instance.op[t];
      const OperatorRole role = p_.graph.op(id).role;
      Tone tone = Tone::kForward;
      if (role == OperatorRole::kUpdate) {
        tone = Tone::kUpdate;
      } else if (role == OperatorRole::kBackward || p_.instance.pass[t] == placement::Pass::kBackward) {
        tone = Tone::kBackward;
      }
      keys_.push_back({of_operator[id.index()], tone});
    }
  }

  static std::string box_class(const BoxKey& key) {
    if (key.tone == Tone::kUpdate) return "once";
    return fmt::format("{}{}", key.tone == Tone::kForward ? 'f' : 'b', key.module % kHues);
  }
  std::string key_text(const BoxKey& key) const {
    constexpr std::array<const char*, 3> kWords{"forward", "backward", "update"};
    return modules_[key.module] + ", " + kWords[static_cast<std::size_t>(key.tone)];
  }

  void text(double at_x, double at_y, std::string_view classes, std::string_view content) {
    body_ += fmt::format("<text class=\"{}\" x=\"{}\" y=\"{}\">{}</text>\n", classes, short_number(at_x),
                         short_number(at_y), xml_text(content));
  }
  void lane(double height, std::string_view classes) {
    body_ += fmt::format("<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"3\"/>\n",
                         classes, short_number(kLeftMargin), short_number(y_),
                         short_number(static_cast<double>(columns_) * kColumn), short_number(height));
  }
  void path(std::string_view classes, std::string_view d, const std::string& title) {
    body_ +=
        fmt::format("<path class=\"{}\" d=\"{}\"><title>{}</title></path>\n", classes, d, xml_text(title));
  }

  void heading() {
    text(kLeftMargin, y_ + 14, "t h", p_.title);
    text(kLeftMargin, y_ + 35, "s d",
         fmt::format("{} a step, operator by operator: {} operators, {} messages", to_text(end_),
                     p_.instance.tasks(), p_.timeline.messages.size()));
    y_ += 58;
    double at = kLeftMargin;
    const auto item = [&](const std::vector<std::string>& classes, const std::string& name) {
      const double length =
          15.0 * static_cast<double>(classes.size()) + 21 + 6.6 * static_cast<double>(display_width(name));
      if (at + length > width_ - kRightMargin && at > kLeftMargin) {
        at = kLeftMargin;
        y_ += 20;
      }
      for (std::size_t i = 0; i < classes.size(); ++i) {
        body_ +=
            fmt::format("<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"14\" height=\"12\" rx=\"2\"/>\n",
                        classes[i], short_number(at + 15.0 * static_cast<double>(i)), short_number(y_ - 10));
      }
      text(at + 15.0 * static_cast<double>(classes.size()) + 5, y_, "s d", name);
      at += length;
    };
    for (std::size_t m = 0; m < std::min(modules_.size(), kMostModules); ++m)
      item({box_class({m, Tone::kForward}), box_class({m, Tone::kBackward})}, modules_[m]);
    item({}, "(forward, backward)");
    item({"once"}, "update");
    y_ += 26;
  }

  // What takes most of each column's time, where at least half of the column is busy.
  std::vector<std::optional<BoxKey>> columns_of(DeviceId device) const {
    std::vector<std::map<BoxKey, double>> shares(columns_);
    for (const placement::TaskId task : p_.timeline.lists[device.index()]) {
      const double from = column_of(p_.timeline.start[task.index()]);
      const double to = column_of(p_.timeline.end[task.index()]);
      for (auto c = static_cast<std::size_t>(from); c < columns_ && static_cast<double>(c) < to; ++c) {
        const auto left = static_cast<double>(c);
        shares[c][keys_[task.index()]] += std::min(to, left + 1) - std::max(from, left);
      }
    }
    std::vector<std::optional<BoxKey>> result(columns_);
    for (std::size_t c = 0; c < columns_; ++c) {
      double busy = 0, most = 0;
      for (const auto& [key, share] : shares[c]) {
        busy += share;
        if (share > most) result[c] = key;
        most = std::max(most, share);
      }
      if (busy < 0.5) result[c].reset();
    }
    return result;
  }

  void device_lane(DeviceId device) {
    struct Sum {
      std::string boxes;
      Duration time;
      std::size_t operators = 0;
    };
    std::map<BoxKey, Sum> sums;
    Duration busy;
    for (const placement::TaskId task : p_.timeline.lists[device.index()]) {
      Sum& sum = sums[keys_[task.index()]];
      const Duration time = p_.timeline.end[task.index()] - p_.timeline.start[task.index()];
      sum.time += time;
      busy += time;
      ++sum.operators;
    }
    text(16, y_ + 16, "t n", device_name(device));
    text(16, y_ + 31, "s d",
         fmt::format("{:.0f} % busy",
                     100 * static_cast<double>(busy.count()) / static_cast<double>(end_.count())));
    lane(kDeviceHeight, "lane");
    lane_top_.push_back(y_);
    const std::vector<std::optional<BoxKey>> columns = columns_of(device);
    std::string labels;
    for (std::size_t c = 0; c < columns_;) {
      std::size_t next = c + 1;
      while (next < columns_ && columns[next] == columns[c]) ++next;
      if (columns[c]) {
        const double from = kLeftMargin + static_cast<double>(c) * kColumn;
        const double wide = static_cast<double>(next - c) * kColumn;
        sums[*columns[c]].boxes +=
            fmt::format("M{} {}h{}v{}h-{}z", short_number(from), short_number(y_ + 2), short_number(wide),
                        short_number(kDeviceHeight - 4), short_number(wide));
        labels += label(*columns[c], from, wide);
      }
      c = next;
    }
    for (const auto& [key, sum] : sums) {
      if (sum.boxes.empty()) continue;
      path(box_class(key), sum.boxes,
           fmt::format("{}: {} operator{}, {} on {}", key_text(key), sum.operators,
                       sum.operators == 1 ? "" : "s", to_text(sum.time), device_name(device)));
    }
    body_ += labels;
    y_ += kDeviceHeight + 3;
    way_lanes(device);
    y_ += 12;
  }

  std::string label(const BoxKey& key, double from, double wide) const {
    const std::string& name = modules_[key.module];
    if (key.tone == Tone::kUpdate || wide < 6.4 * static_cast<double>(display_width(name)) + 8) return {};
    return fmt::format("<text class=\"l {}\" x=\"{}\" y=\"{}\">{}</text>\n",
                       key.tone == Tone::kBackward ? "lb" : "lf", short_number(from + wide / 2),
                       short_number(y_ + kDeviceHeight / 2 + 4), xml_text(name));
  }

  void way_lanes(DeviceId device) {
    struct Way {
      std::vector<char> used;
      std::size_t messages = 0;
      Bytes bytes;
    };
    std::map<DeviceId, Way> ways;
    for (const placement::Timeline::Message& message : p_.timeline.messages) {
      if (message.from == device) ++ways[message.to].messages;
    }
    const bool all_in_one = ways.size() > 4;  // one lane for all of them
    if (all_in_one) ways = {{device, Way()}};
    for (auto& [to, way] : ways) way = {std::vector<char>(columns_), 0, {}};
    for (const placement::Timeline::Message& message : p_.timeline.messages) {
      if (message.from != device) continue;
      Way& way = ways.at(all_in_one ? device : message.to);
      ++way.messages;
      way.bytes += p_.instance.bytes[message.value.index()];
      const double to = column_of(message.arrival);
      auto c = std::min(static_cast<std::size_t>(column_of(message.start)), columns_ - 1);
      do {
        way.used[c] = 1;
      } while (++c < columns_ && static_cast<double>(c) < to);
    }
    for (const auto& [to, way] : ways) {
      const std::string whom = to == device ? "others" : device_name(to);
      lane(kWayHeight, "wire");
      std::string boxes;
      for (std::size_t c = 0; c < columns_;) {
        std::size_t next = c + 1;
        while (next < columns_ && way.used[next] == way.used[c]) ++next;
        const std::string wide = short_number(static_cast<double>(next - c) * kColumn);
        if (way.used[c] != 0) {
          boxes +=
              fmt::format("M{} {}h{}v{}h-{}z", short_number(kLeftMargin + static_cast<double>(c) * kColumn),
                          short_number(y_ + 1), wide, short_number(kWayHeight - 2), wide);
        }
        c = next;
      }
      path("msg", boxes,
           fmt::format("{} to {}: {} message{}, {}", device_name(device), whom, way.messages,
                       way.messages == 1 ? "" : "s", to_text(way.bytes)));
      text(kLeftMargin - 6, y_ + kWayHeight, "s e m", "to " + whom);
      y_ += kWayHeight + 3;
    }
  }

  // Which messages have an arrow: those on the critical path, then those that a device waited for longest.
  std::vector<std::size_t> arrows_of(const std::vector<placement::MessageUse>& uses) const {
    std::vector<std::size_t> chosen;
    for (std::size_t m = 0; m < uses.size(); ++m) {
      if (uses[m].critical || uses[m].waited > Duration()) chosen.push_back(m);
    }
    std::stable_sort(chosen.begin(), chosen.end(), [&](std::size_t a, std::size_t b) {
      if (uses[a].critical != uses[b].critical) return uses[a].critical;
      return uses[a].waited > uses[b].waited;
    });
    if (chosen.size() > kMostArrows) chosen.resize(kMostArrows);
    return chosen;
  }

  // Draws them, and says how many of how many they are.
  std::string arrows() {
    const std::vector<placement::MessageUse> uses =
        placement::message_uses(p_.instance, p_.assignment, p_.timeline);
    std::vector<std::size_t> chosen = arrows_of(uses);
    std::reverse(chosen.begin(), chosen.end());  // what counts most is drawn last
    std::size_t critical = 0;
    for (const std::size_t m : chosen) {
      arrow(p_.timeline.messages[m], uses[m]);
      critical += uses[m].critical ? 1 : 0;
    }
    const auto all = static_cast<std::size_t>(std::count_if(
        uses.begin(), uses.end(), [](const placement::MessageUse& use) { return use.critical; }));
    return fmt::format(
        "Arrows: {} of {} messages, first those on the critical path (red, {} of {}), then those that a "
        "device waited for longest.",
        chosen.size(), uses.size(), critical, all);
  }

  // From the end of the operator that sends to the arrival.
  void arrow(const placement::Timeline::Message& message, const placement::MessageUse& use) {
    const placement::TaskId sender = p_.instance.producer[message.value.index()];
    const double from = lane_top_[message.from.index()], to = lane_top_[message.to.index()];
    const double down = from < to ? 1 : -1;
    const double x1 = x(p_.timeline.end[sender.index()]), y1 = down > 0 ? from + kDeviceHeight : from;
    const double x2 = x(message.arrival), y2 = down > 0 ? to : to + kDeviceHeight;
    const double length = std::hypot(x2 - x1, y2 - y1);
    const double ux = (x2 - x1) / length * kArrowHead, uy = (y2 - y1) / length * kArrowHead;
    path(use.critical ? "ac" : "ar",
         fmt::format("M{} {}L{} {}M{} {}L{} {}L{} {}", short_number(x1), short_number(y1), short_number(x2),
                     short_number(y2), short_number(x2 - ux - uy / 2), short_number(y2 - uy + ux / 2),
                     short_number(x2), short_number(y2), short_number(x2 - ux + uy / 2),
                     short_number(y2 - uy - ux / 2)),
         fmt::format("{} to {}: of {}, {}, waited for {}", device_name(message.from), device_name(message.to),
                     p_.graph.op(p_.instance.op[sender.index()]).name,
                     to_text(p_.instance.bytes[message.value.index()]), to_text(use.waited)));
  }

  void memory_lane(DeviceId device, const std::vector<placement::HeldFrom>& points) {
    const Bytes peak = p_.timeline.peak[device.index()], limit = p_.instance.memory[device.index()];
    const double most = static_cast<double>(std::max<std::int64_t>(peak.count(), 1));
    const auto capacity = static_cast<double>(limit.count());
    const bool shown = capacity < 2.5 * most;  // else the curve would be flat
    const double scale = (kHeldHeight - 4) / ((shown ? std::max(most, capacity) : most) * 1.04);
    const double base = y_ + kHeldHeight;
    text(16, y_ + 16, "t n", device_name(device));
    text(16, y_ + 32, "s d", "peak " + to_text(peak));
    text(16, y_ + 47, "s d", "of " + to_text(limit));
    lane(kHeldHeight, "wire");
    std::vector<std::int64_t> held(columns_ + 1);  // the most in each column
    for (std::size_t i = 0; i < points.size(); ++i) {
      const Duration until = i + 1 < points.size() ? points[i + 1].time : end_;
      auto c = std::min(static_cast<std::size_t>(column_of(points[i].time)), columns_);
      do {
        held[c] = std::max(held[c], points[i].held.count());
      } while (++c < columns_ && static_cast<double>(c) < column_of(until));
    }
    std::string curve = fmt::format("M{} {}", short_number(kLeftMargin), short_number(base)), last;
    for (std::size_t c = 0; c < columns_; ++c) {
      const std::string height = short_number(base - static_cast<double>(held[c]) * scale);
      if (height == last) continue;
      curve += fmt::format("H{}V{}", short_number(kLeftMargin + static_cast<double>(c) * kColumn), height);
      last = height;
    }
    curve += fmt::format("H{}V{}Z", short_number(kLeftMargin + static_cast<double>(columns_) * kColumn),
                         short_number(base));
    path("mem", curve, fmt::format("{}: {} at the peak", device_name(device), to_text(peak)));
    if (shown) {
      const std::string at = short_number(base - capacity * scale);
      body_ += fmt::format("<line class=\"cap\" x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/>\n",
                           short_number(kLeftMargin), short_number(x(end_)), at, at);
      if (peak > limit) text(x(end_) - 6, base - capacity * scale + 13, "capt d e", "does not fit");
    }
    y_ += kHeldHeight + 14;
  }

  std::string grid(double top, double bottom) const {
    std::string out;
    for (const Tick& tick : axis_.ticks) {
      out += fmt::format("<line class=\"grid\" x1=\"{0}\" x2=\"{0}\" y1=\"{1}\" y2=\"{2}\"/>\n",
                         short_number(x(tick.time)), short_number(top), short_number(bottom));
    }
    return out;
  }

  std::string head() const {
    const std::string dark =
        ".bg{fill:#0f1620}.t{fill:#e6edf3}.s{fill:#93a1b0}.lane{fill:#1b2531}.wire{fill:#161f2a}"
        ".grid{stroke:#2a3644}.cap{stroke:#ff7b6b}.capt{fill:#ff7b6b}.once{fill:#76859a}.msg{fill:#8fa3b8}"
        ".ar{stroke:#c4cfda}.ac{stroke:#ff7b6b}";
    std::string out = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
        "style=\"max-width:100%;height:auto\" role=\"img\">\n"
        "<style>text{{font-family:Inter,'Segoe UI','Helvetica Neue',Arial,'DejaVu Sans',sans-serif}}",
        width_, short_number(y_));
    out += hue_classes();
    out +=
        ".mem{fill:#e2a44f}.lf{fill:#16324f}.lb{fill:#ffffff}.l{font-size:12px;text-anchor:middle}"
        ".grid{stroke-width:1}.cap{stroke-width:1.2;stroke-dasharray:5 4}.h{font-size:20px;font-weight:600}"
        ".n{font-size:14px;font-weight:600}.d{font-size:12px}.m{font-size:9px}.e{text-anchor:end}"
        ".c{text-anchor:middle}.bg{fill:#ffffff}.t{fill:#17202a}.s{fill:#5b6775}.lane{fill:#eef2f6}"
        ".wire{fill:#f5f7fa}.grid{stroke:#d8dfe6}.cap{stroke:#c0392b}.capt{fill:#c0392b}.once{fill:#8b97a5}"
        ".msg{fill:#55677b}.ar,.ac{fill:none}.ar{stroke:#33414f;stroke-width:.6;stroke-opacity:.6}"
        ".ac{stroke:#c0392b;stroke-width:1.2}@media (prefers-color-scheme:dark){" +
        dark + "}</style>\n";
    return out + fmt::format("<rect class=\"bg\" width=\"{}\" height=\"{}\" rx=\"8\"/>\n", width_,
                             short_number(y_));
  }

  const PlacementPicture& p_;
  int width_;
  Duration end_;
  Axis axis_;
  std::size_t columns_ = 0;
  std::vector<std::string> modules_;  // numbered as in keys
  std::vector<BoxKey> keys_;          // by task
  std::vector<double> lane_top_;      // by device
  std::string body_;
  double y_ = 24;
};

}  // namespace

std::string svg_placement(const PlacementPicture& picture, int width) {
  return PlacementDrawing(picture, width).run();
}

}  // namespace espalier
