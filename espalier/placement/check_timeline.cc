// A timeline is judged in four walks: devices (order, durations), readiness (nothing begins early or waits
// without a cause), messages (which there are; first come, first served), memory (intervals, summed up).
//
// What happens at one instant has an order that a timeline does not show where tasks take no time. So a
// choice is compared with those tasks alone that were ready before its instant.

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "espalier/placement/engine.h"

namespace espalier::placement {
namespace {

class TimelineChecker {
 public:
  TimelineChecker(const Instance& instance, const Rules& rules, std::span<const DeviceId> assignment,
                  const Timeline& line)
      : i_(instance), rules_(rules), assignment_(assignment), line_(line) {}

  std::vector<std::string> run() {
    if (line_.evaluated.deadlock || line_.evaluated.cut_off) return {};
    if (!shape()) return std::move(found_);
    find_messages();
    durations();
    readiness();
    wires();
    memory();
    return std::move(found_);
  }

 private:
  void violate(const std::string& text) { found_.push_back(text); }
  static std::string name(TaskId task) { return "task " + std::to_string(task.index()); }
  static std::string name(DeviceId device) { return "device " + std::to_string(device.index()); }
  static std::string name(const Timeline::Message& m) {
    return "message of value " + std::to_string(m.value.index()) + " to device " +
           std::to_string(m.to.index());
  }

  DeviceId device(TaskId task) const { return assignment_[i_.unit[task.index()].index()]; }
  DeviceId home(ValueId value) const { return device(i_.producer[value.index()]); }
  Duration start(TaskId task) const { return line_.start[task.index()]; }
  Duration end(TaskId task) const { return line_.end[task.index()]; }
  bool here_only(ValueId value) const { return !i_.here_only.empty() && i_.here_only[value.index()] != 0; }
  Bytes own_bytes(ValueId value) const {
    return (i_.own_bytes.empty() ? i_.bytes : i_.own_bytes)[value.index()];
  }

  bool shape() {
    if (line_.start.size() != i_.tasks() || line_.end.size() != i_.tasks() ||
        line_.lists.size() != i_.devices() || line_.peak.size() != i_.devices()) {
      violate("shape: times by task, lists and peaks by device");
      return false;
    }
    std::vector<int> listed(i_.tasks(), 0);
    for (std::size_t d = 0; d < i_.devices(); ++d) {
      for (const TaskId task : line_.lists[d]) {
        if (task.index() >= i_.tasks() || device(task) != DeviceId(d)) {
          violate("list: " + name(DeviceId(d)) + " ran " + name(task) + ", which stands elsewhere");
          return false;
        }
        ++listed[task.index()];
      }
    }
    for (std::size_t task = 0; task < i_.tasks(); ++task) {
      if (listed[task] != 1)
        violate("list: " + name(TaskId(task)) + " ran " + std::to_string(listed[task]) + " times");
    }
    return found_.empty();
  }

  // --- messages by (value, receiver), each exactly where somebody needs one

  void find_messages() {
    for (const Timeline::Message& m : line_.messages) {
      if (!messages_.emplace(std::pair(m.value, m.to), &m).second)
        violate("message: " + name(m) + " comes twice");
      if (m.from != home(m.value))
        violate("message: " + name(m) + " comes from another device than its producer's");
    }
    std::set<std::pair<ValueId, DeviceId>> needed;
    for (std::size_t v = 0; v < i_.values(); ++v) {
      for (const TaskId reader : i_.readers[v]) {
        if (device(reader) != home(ValueId(v)) && !here_only(ValueId(v)))
          needed.emplace(ValueId(v), device(reader));
      }
    }
    for (const auto& key : needed) {
      if (messages_.count(key) == 0) {
        violate("message: value " + std::to_string(key.first.index()) + " never comes to " +
                name(key.second));
      }
    }
    for (const auto& [key, message] : messages_) {
      if (needed.count(key) == 0) violate("message: nobody there reads the " + name(*message));
    }
  }

  bool pays() const { return !rules_.bandwidth.has_value(); }

  // --- devices

  // What stands between a task's start and its end: copies that the device has not run yet, messages that it
  // takes notice of, the task.
  void durations() {
    for (std::size_t d = 0; d < i_.devices(); ++d) {
      std::set<std::uint32_t> copied;
      std::set<ValueId> noticed;
      for (const TaskId task : line_.lists[d]) {
        Duration work = i_.time_on(task, DeviceId(d)), time;
        for (const std::uint32_t copy : i_.duplicates[task.index()]) {
          if (copied.insert(copy).second) work += i_.duplicate_time[copy * i_.kinds + i_.kind[d].index()];
        }
        for (const ValueId value : i_.reads[task.index()]) {
          if (home(value) == DeviceId(d) || here_only(value) || !pays()) continue;
          if (!noticed.insert(value).second) continue;
          time += i_.way(home(value), DeviceId(d)).receive.of(i_.bytes[value.index()]);
        }
        worked_[task] = work > Duration();
        if (end(task) - start(task) != work + time)
          violate("duration: " + name(task) + " takes another time");
      }
    }
  }

  // The messages that leave a task, in order; of those for all the slowest stands for them.
  std::vector<const Timeline::Message*> sent_by(TaskId task) const {
    std::vector<const Timeline::Message*> result;
    for (const ValueId value : i_.produces[task.index()]) {
      const Timeline::Message* slowest = nullptr;
      for (auto at = messages_.lower_bound({value, DeviceId(0)});
           at != messages_.end() && at->first.first == value; ++at) {
        if (rules_.copies == Rules::Copies::kOneEach) {
          result.push_back(at->second);
        } else if (!slowest || takes(*at->second) > takes(*slowest)) {
          slowest = at->second;
        }
      }
      if (slowest) result.push_back(slowest);
    }
    return result;
  }

  Duration hold(const Timeline::Message& m) const {
    const Bytes bytes = i_.bytes[m.value.index()];
    return rules_.bandwidth ? transfer_time(bytes, *rules_.bandwidth) : i_.way(m.from, m.to).hold(bytes);
  }
  Duration latency(const Timeline::Message& m) const {
    return pays() ? i_.way(m.from, m.to).latency : Duration();
  }
  Duration takes(const Timeline::Message& m) const { return hold(m) + latency(m); }

  // When a task could begin, but for its device.
  Duration ready(TaskId task) const {
    Duration time;
    for (const ValueId value : i_.reads[task.index()]) {
      if (home(value) == device(task)) {
        time = std::max(time, end(i_.producer[value.index()]));
      } else if (const auto at = messages_.find({value, device(task)}); at != messages_.end()) {
        time = std::max(time, at->second->arrival);
      }
    }
    return time;
  }

  void readiness() {
    for (std::size_t d = 0; d < i_.devices(); ++d) {
      const auto list = line_.lists[d];
      std::set<std::pair<Duration, TaskId>> left;
      for (const TaskId task : list) left.emplace(ready(task), task);
      Duration free;
      for (const TaskId task : list) {
        const auto first =
            rules_.order == Rules::Order::kListed ? left.find({ready(task), task}) : left.begin();
        if (start(task) < ready(task))
          violate("early: " + name(task) + " begins before all that it reads is there");
        if (start(task) < free) violate("overlap: " + name(task) + " begins while its device is busy");
        if (start(task) != std::max(free, first->first))
          violate("idle: " + name(task) + " could begin earlier");
        if (rules_.order == Rules::Order::kFirstReady && std::pair(ready(task), task) > *first &&
            first->first < start(task)) {
          violate("order: " + name(first->second) + " was ready before " + name(task));
        }
        left.erase({ready(task), task});
        free = end(task) + (worked_[task] ? rules_.busy_after : Duration());
        for (const Timeline::Message* m : sent_by(task)) {
          if (pays()) free += i_.way(m->from, m->to).send.of(i_.bytes[m->value.index()]);
        }
      }
    }
  }

  // --- wires

  void wires() {
    using Key = std::tuple<Duration, Duration, Duration, DeviceId, ValueId, DeviceId>;
    std::vector<std::pair<Key, const Timeline::Message*>> order;
    for (std::size_t task = 0; task < i_.tasks(); ++task) {
      Duration ready = end(TaskId(task));
      for (const Timeline::Message* m : sent_by(TaskId(task))) {
        if (pays()) ready += i_.way(m->from, m->to).send.of(i_.bytes[m->value.index()]);
        order.push_back({{ready, m->start, hold(*m), m->from, m->value, m->to}, m});
      }
    }
    std::sort(order.begin(), order.end());
    std::map<std::size_t, Duration> free;  // by link, or by sender
    for (const auto& [key, m] : order) {
      std::vector<std::size_t> held;
      if (rules_.sends == Rules::Sends::kSenderBus) held = {m->from.index()};
      if (rules_.sends == Rules::Sends::kRoutes) {
        held.assign(i_.way(m->from, m->to).links.begin(), i_.way(m->from, m->to).links.end());
      }
      Duration start = std::get<0>(key);
      for (const std::size_t link : held) start = std::max(start, free[link]);
      for (const std::size_t link : held) free[link] = start + hold(*m) + rules_.bus_busy_after;
      if (m->start != start) violate("wire: " + name(*m) + " begins at another time");
      if (m->arrival != start + takes(*m)) violate("wire: " + name(*m) + " takes another time");
      if (rules_.copies == Rules::Copies::kOneEach) continue;
      for (auto at = messages_.lower_bound({m->value, DeviceId(0)});
           at != messages_.end() && at->first.first == m->value; ++at) {
        if (at->second->start != m->start || at->second->arrival != m->arrival) {
          violate("wire: " + name(*at->second) + " is one message with that to " + name(m->to));
        }
      }
    }
  }

  // --- memory

  void hold_from_to(DeviceId device, Duration from, Duration to, Bytes bytes) {
    if (from >= to) return;
    changes_[device][from] += bytes;
    changes_[device][to] -= bytes;
  }

  // The last moment that somebody on the device needs the value; values within it come first.
  Duration needed_until(ValueId value, DeviceId where) {
    Duration until = where == home(value) ? end(i_.producer[value.index()]) : Duration();
    for (const TaskId reader : i_.readers[value.index()]) {
      if (device(reader) == where) until = std::max(until, end(reader));
    }
    if (where == home(value)) {
      for (auto at = messages_.lower_bound({value, DeviceId(0)});
           at != messages_.end() && at->first.first == value; ++at) {
        until = std::max(until, at->second->arrival);
      }
    }
    if (const auto inner = kept_until_.find({value, where}); inner != kept_until_.end()) {
      until = std::max(until, inner->second);
    }
    return until;
  }

  void memory() {
    const bool live = rules_.memory == Rules::Memory::kLive;
    std::vector<Bytes> held(i_.devices()), workspace(i_.devices());
    hold_residents(held);
    for (std::size_t v = i_.values(); v-- > 0;) {
      const ValueId value(v);
      const DeviceId at = home(value);
      const Duration until = needed_until(value, at);
      if (!i_.within.empty() && i_.within[v] != value) {
        Duration& kept = kept_until_[{i_.within[v], at}];
        kept = std::max(kept, until);
      }
      if (live) hold_from_to(at, start(i_.producer[v]), until, own_bytes(value));
      held[at.index()] += live ? Bytes() : own_bytes(value);
      for (auto m = messages_.lower_bound({value, DeviceId(0)});
           m != messages_.end() && m->first.first == value; ++m) {
        const DeviceId to = m->first.second;
        if (live) hold_from_to(to, m->second->start, needed_until(value, to), i_.bytes[v]);
        held[to.index()] += live ? Bytes() : i_.bytes[v];
      }
    }
    for (std::size_t task = 0; task < i_.tasks(); ++task) {
      const TaskId id(task);
      const Bytes bytes = i_.workspace[task];
      if (live) hold_from_to(device(id), start(id), end(id), bytes);
      Bytes& most = workspace[device(id).index()];
      if (start(id) < end(id) && !live) most = std::max(most, bytes);
    }
    compare_memory(held, workspace);
  }

  void hold_residents(std::vector<Bytes>& held) const {
    std::set<std::pair<std::size_t, std::uint32_t>> seen;
    for (std::size_t unit = 0; unit < i_.units(); ++unit) {
      for (const std::uint32_t resident : i_.resident[unit]) {
        const std::size_t where = assignment_[unit].index();
        if (seen.emplace(where, resident).second) held[where] += i_.resident_bytes[resident];
      }
    }
  }

  void compare_memory(const std::vector<Bytes>& held, const std::vector<Bytes>& workspace) {
    Bytes lack;
    for (std::size_t d = 0; d < i_.devices(); ++d) {
      Bytes now = held[d] + workspace[d], peak = now;
      for (const auto& [time, change] : changes_[DeviceId(d)]) {
        now += change;
        peak = std::max(peak, now);
      }
      if (line_.peak[d] != peak) {
        violate("memory: " + name(DeviceId(d)) + " needs " + std::to_string(peak.count()) + " bytes, not " +
                std::to_string(line_.peak[d].count()));
      }
      lack += std::max(Bytes(), peak - i_.memory[d]);
    }
    const Evaluated& e = line_.evaluated;
    if (e.lack != lack || e.fits != (lack == Bytes())) violate("memory: what lacks is said otherwise");
    Duration last;
    for (const Duration time : line_.end) last = std::max(last, time);
    const Duration ending = sums_and_updates();
    if (line_.ending != ending) violate("time: the sums and updates take " + std::to_string(ending.count()));
    if (e.time != last + ending) violate("time: the step ends with its last task, sums and updates");
  }

  // Parameter by parameter, from the smallest of its devices to the others and back, and each device's
  // updates.
  Duration sums_and_updates() const {
    std::map<DeviceId, Duration> summed, updates;
    for (std::size_t p = 0; p < i_.trained.size(); ++p) {
      std::set<DeviceId> holders;
      for (std::size_t unit = 0; unit < i_.units(); ++unit) {
        const auto held = i_.resident[unit];
        if (std::find(held.begin(), held.end(), i_.trained[p]) != held.end())
          holders.insert(assignment_[unit]);
      }
      Duration begin, takes, first_way, last_way;
      for (const DeviceId device : holders) {
        begin = std::max(begin, summed[device]);
        updates[device] += i_.update_time[p * i_.kinds + i_.kind[device.index()].index()];
        if (device == *holders.begin()) continue;
        const Route& there = i_.way(device, *holders.begin());
        const Route& back = i_.way(*holders.begin(), device);
        const Bytes bytes = i_.trained_bytes[p];
        takes += there.hold(bytes) + there.receive.of(bytes) + back.send.of(bytes) + back.hold(bytes);
        first_way = std::max(first_way, there.send.of(bytes) + there.latency);
        last_way = std::max(last_way, back.latency + back.receive.of(bytes));
      }
      for (const DeviceId device : holders) summed[device] = begin + takes + first_way + last_way;
    }
    Duration last;
    for (const auto& [device, time] : summed) {
      last = std::max(last, time + updates[device] + i_.update_fixed[i_.kind[device.index()].index()]);
    }
    return last;
  }

  const Instance& i_;
  const Rules& rules_;
  std::span<const DeviceId> assignment_;
  const Timeline& line_;
  std::vector<std::string> found_;
  std::map<std::pair<ValueId, DeviceId>, const Timeline::Message*> messages_;
  std::map<TaskId, bool> worked_;
  std::map<std::pair<ValueId, DeviceId>, Duration> kept_until_;  // for values that share its memory there
  std::map<DeviceId, std::map<Duration, Bytes>> changes_;
};

}  // namespace

std::vector<std::string> check_timeline(const Instance& instance, const Rules& rules,
                                        std::span<const DeviceId> assignment, const Timeline& timeline) {
  return TimelineChecker(instance, rules, assignment, timeline).run();
}

}  // namespace espalier::placement
