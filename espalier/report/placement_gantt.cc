// Time is cut into columns; a task's share of a column counts for its direction, whatever the number of
// tasks. Shares are exact: in units of 1 / (columns · nanoseconds).

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "espalier/report/gantt_parts.h"
#include "espalier/report/placement_picture.h"
#include "espalier/report/table.h"

namespace espalier {
namespace {

__extension__ using WideShare = __int128;

constexpr std::size_t kDirections = 3;
constexpr std::array<char, kDirections> kCapitals{'F', 'B', 'U'}, kSmall{'f', 'b', 'u'};
constexpr std::array<int, kDirections> kBackgrounds{117, 25, 250};
constexpr std::size_t kMostLanes = 32;

class PlacementGantt {
 public:
  PlacementGantt(const PlacementPicture& picture, const GanttOptions& options)
      : p_(picture), options_(options), layout_(gantt_layout(names(), p_.timeline.evaluated.time, options)) {}

  std::string run() {
    const std::size_t devices = p_.instance.devices();
    find_busy_shares();
    std::vector<DeviceId> shown(devices), hidden;
    for (std::size_t d = 0; d < devices; ++d) shown[d] = DeviceId(d);
    if (devices > kMostLanes) {
      std::stable_sort(shown.begin(), shown.end(), [&](DeviceId a, DeviceId b) {
        return busy_share_[a.index()] > busy_share_[b.index()];
      });
      hidden.assign(shown.begin() + kMostLanes, shown.end());
      shown.resize(kMostLanes);
      std::sort(shown.begin(), shown.end());
    }
    std::vector<std::vector<placement::HeldFrom>> held;
    if (options_.memory) held = placement::held_over_time(p_.instance, p_.rules, p_.assignment, p_.timeline);
    std::string out = gantt_axis(layout_);
    const std::string indent(layout_.name_width + 2, ' ');
    for (const DeviceId device : shown) {
      const std::string& name = p_.cluster.device(device).name;
      out += name + std::string(layout_.name_width - display_width(name) + 2, ' ') + lane(device) +
             fmt::format("  {:5.1f} % busy\n", 100 * busy_share_[device.index()]);
      out += send_lane(device, indent);
      if (options_.memory) {
        out += indent + memory_lane(held[device.index()]) + "  peak " +
               to_text(p_.timeline.peak[device.index()]) + '\n';
      }
    }
    return out + hidden_lanes_text(hidden, busy_share_) + legend();
  }

 private:
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const Device& device : p_.cluster.devices()) result.push_back(device.name);
    return result;
  }
  std::size_t columns() const { return static_cast<std::size_t>(layout_.columns); }
  WideShare whole() const { return std::max<std::int64_t>(layout_.end.count(), 1); }  // a column

  // Adds the part of each column between the two times.
  void add(std::vector<WideShare>& shares, Duration from, Duration to) const {
    const WideShare a = static_cast<WideShare>(from.count()) * layout_.columns;
    const WideShare b = static_cast<WideShare>(to.count()) * layout_.columns;
    for (WideShare c = a / whole(); c < layout_.columns && c * whole() < b; ++c) {
      shares[static_cast<std::size_t>(c)] += std::min(b, (c + 1) * whole()) - std::max(a, c * whole());
    }
  }

  void find_busy_shares() {
    for (std::size_t d = 0; d < p_.instance.devices(); ++d) {
      Duration busy;
      for (const placement::TaskId task : p_.timeline.lists[d])
        busy += p_.timeline.end[task.index()] - p_.timeline.start[task.index()];
      busy_share_.push_back(ratio(busy, layout_.end));
    }
  }

  std::size_t direction_of(placement::TaskId task) const {
    const OperatorRole role = p_.graph.op(p_.instance.op[task.index()]).role;
    if (role == OperatorRole::kUpdate) return 2;
    return role == OperatorRole::kBackward || p_.instance.pass[task.index()] == placement::Pass::kBackward
               ? 1
               : 0;
  }

  std::string lane(DeviceId device) const {
    std::array<std::vector<WideShare>, kDirections> shares;
    shares.fill(std::vector<WideShare>(columns()));
    Duration last;
    for (const placement::TaskId task : p_.timeline.lists[device.index()]) {
      const Duration end = p_.timeline.end[task.index()];
      add(shares[direction_of(task)], p_.timeline.start[task.index()], end);
      last = std::max(last, end);
    }
    std::string out, run;  // neighbours of one colour
    int background = 0;
    for (std::size_t c = 0; c < columns(); ++c) {
      std::size_t most = 0;
      WideShare busy = 0;
      for (std::size_t k = 0; k < kDirections; ++k) {
        busy += shares[k][c];
        if (shares[k][c] > shares[most][c]) most = k;
      }
      const bool full = 2 * busy >= whole(), over = static_cast<WideShare>(c) * whole() >=
                                                    static_cast<WideShare>(last.count()) * layout_.columns;
      const int now = full ? kBackgrounds[most] : 0;
      if (now != background) {
        out += painted(run, background, options_.colour);
        run.clear();
        background = now;
      }
      if (full || 10 * busy >= whole()) {
        run += full ? kCapitals[most] : kSmall[most];
      } else {
        run += over ? " " : "·";
      }
    }
    return out + painted(run, background, options_.colour);
  }

  // Nothing where the device sends nothing. Messages that overlap count once.
  std::string send_lane(DeviceId device, const std::string& indent) const {
    std::vector<WideShare> shares(columns());
    Duration until, busy;
    for (const placement::Timeline::Message& message : p_.timeline.messages) {  // by start
      if (message.from != device || message.arrival <= until) continue;
      const Duration from = std::max(message.start, until);
      add(shares, from, message.arrival);
      busy += message.arrival - from;
      until = message.arrival;
    }
    if (busy == Duration()) return {};
    std::string marks;
    for (const WideShare share : shares) marks += 2 * share >= whole() ? '=' : share > 0 ? '-' : ' ';
    return indent + dimmed(marks, options_.colour) +
           fmt::format("  {:5.1f} % sends\n", 100 * ratio(busy, layout_.end));
  }

  std::string memory_lane(const std::vector<placement::HeldFrom>& points) const {
    std::vector<std::int64_t> most(columns());
    for (std::size_t i = 0; i < points.size(); ++i) {
      const Duration until = i + 1 < points.size() ? points[i + 1].time : layout_.end;
      const int from = layout_.column(points[i].time);
      const int to = std::max(from + 1, layout_.column(until));
      for (int c = from; c < std::min(to, layout_.columns); ++c) {
        auto& value = most[static_cast<std::size_t>(c)];
        value = std::max(value, points[i].held.count());
      }
    }
    return dimmed(eighths(most), options_.colour);
  }

  // In lines that fit.
  std::string legend() const {
    std::vector<std::string> items{"F forward", "B backward", "U update", "small: less than half of a column",
                                   "· waits"};
    if (!p_.timeline.messages.empty()) {
      items.emplace_back("= sends, - in less than half of a column");
    }
    if (options_.memory) items.emplace_back("▁▄█ memory held, of its peak");
    std::string out, line;
    for (const std::string& item : items) {
      const bool fits = display_width(line) + 3 + display_width(item) <=
                        static_cast<std::size_t>(std::max(options_.width, 40));
      if (!line.empty() && !fits) {
        out += line + '\n';
        line.clear();
      }
      line += (line.empty() ? "" : "   ") + item;
    }
    return out + line + '\n';
  }

  const PlacementPicture& p_;
  const GanttOptions& options_;
  GanttLayout layout_;
  std::vector<double> busy_share_;  // by device
};

}  // namespace

std::string text_placement(const PlacementPicture& picture, const GanttOptions& options) {
  return PlacementGantt(picture, options).run();
}

}  // namespace espalier
