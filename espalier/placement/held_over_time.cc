#include "espalier/placement/held_over_time.h"

#include <algorithm>
#include <map>
#include <utility>

namespace espalier::placement {
namespace {

class HeldCurves {
 public:
  HeldCurves(const Instance& instance, const Rules& rules, std::span<const DeviceId> assignment,
             const Timeline& line)
      : i_(instance),
        live_(rules.memory == Rules::Memory::kLive),
        assignment_(assignment),
        line_(line),
        base_(instance.devices()),
        changes_(instance.devices()),
        sent_(instance.values()) {
    for (std::size_t m = 0; m < line.messages.size(); ++m) sent_[line.messages[m].value.index()].push_back(m);
  }

  std::vector<std::vector<HeldFrom>> run() {
    residents();
    for (std::size_t v = i_.values(); v-- > 0;) value(ValueId(v));  // views before what they show
    for (std::size_t t = 0; t < i_.tasks(); ++t) {
      hold(device(TaskId(t)), line_.start[t], line_.end[t], i_.workspace[t]);
    }
    std::vector<std::vector<HeldFrom>> curves;
    for (std::size_t d = 0; d < i_.devices(); ++d) curves.push_back(curve(d));
    return curves;
  }

 private:
  DeviceId device(TaskId task) const { return assignment_[i_.unit[task.index()].index()]; }

  void hold(DeviceId where, Duration from, Duration to, Bytes bytes) {
    if (from >= to || bytes == Bytes()) return;
    changes_[where.index()].push_back({from, bytes});
    changes_[where.index()].push_back({to, Bytes() - bytes});
  }
  void hold_value(DeviceId where, Duration from, Duration to, Bytes bytes) {
    if (live_) {
      hold(where, from, to, bytes);
    } else {
      base_[where.index()] += bytes;
    }
  }

  void residents() {
    std::vector<std::pair<DeviceId, std::uint32_t>> held;
    for (std::size_t unit = 0; unit < i_.units(); ++unit) {
      for (const std::uint32_t resident : i_.resident[unit]) held.emplace_back(assignment_[unit], resident);
    }
    std::sort(held.begin(), held.end());
    held.erase(std::unique(held.begin(), held.end()), held.end());
    for (const auto& [where, resident] : held) base_[where.index()] += i_.resident_bytes[resident];
  }

  // The end of its last reader on the device, and of those that share its memory there.
  Duration used_until(ValueId value, DeviceId where) const {
    Duration until;
    for (const TaskId reader : i_.readers[value.index()]) {
      if (device(reader) == where) until = std::max(until, line_.end[reader.index()]);
    }
    const auto shown = shown_until_.find({value, where});
    return shown == shown_until_.end() ? until : std::max(until, shown->second);
  }

  void value(ValueId value) {
    const std::size_t v = value.index();
    const TaskId producer = i_.producer[v];
    const DeviceId home = device(producer);
    Duration until = std::max(line_.end[producer.index()], used_until(value, home));
    for (const std::size_t m : sent_[v]) until = std::max(until, line_.messages[m].arrival);
    if (!i_.within.empty() && i_.within[v] != value) {
      Duration& shown = shown_until_[{i_.within[v], home}];
      shown = std::max(shown, until);
    }
    hold_value(home, line_.start[producer.index()], until,
               (i_.own_bytes.empty() ? i_.bytes : i_.own_bytes)[v]);
    for (const std::size_t m : sent_[v]) {
      const Timeline::Message& message = line_.messages[m];
      hold_value(message.to, message.start, used_until(value, message.to), i_.bytes[v]);
    }
  }

  std::vector<HeldFrom> curve(std::size_t d) {
    std::vector<HeldFrom>& changes = changes_[d];
    std::sort(changes.begin(), changes.end(),
              [](const HeldFrom& a, const HeldFrom& b) { return a.time < b.time; });
    std::vector<HeldFrom> points{{Duration(), base_[d]}};
    Bytes now = base_[d];
    for (std::size_t c = 0; c < changes.size();) {
      const Duration time = changes[c].time;
      for (; c < changes.size() && changes[c].time == time; ++c) now += changes[c].held;
      if (time == Duration()) {
        points[0].held = now;
      } else if (now != points.back().held) {
        points.push_back({time, now});
      }
    }
    return points;
  }

  const Instance& i_;
  bool live_;
  std::span<const DeviceId> assignment_;
  const Timeline& line_;
  std::vector<Bytes> base_;                                       // by device: all step long
  std::vector<std::vector<HeldFrom>> changes_;                    // by device: by how much, in any order
  std::vector<std::vector<std::size_t>> sent_;                    // by value: messages
  std::map<std::pair<ValueId, DeviceId>, Duration> shown_until_;  // by those within it
};

}  // namespace

std::vector<std::vector<HeldFrom>> held_over_time(const Instance& instance, const Rules& rules,
                                                  std::span<const DeviceId> assignment,
                                                  const Timeline& timeline) {
  return HeldCurves(instance, rules, assignment, timeline).run();
}

}  // namespace espalier::placement
