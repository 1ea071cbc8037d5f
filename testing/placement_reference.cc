#include "testing/placement_reference.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace espalier::testing {

using placement::DeviceOrders;
using placement::Instance;
using placement::Rules;
using placement::TaskId;
using placement::Timeline;
using placement::ValueId;

namespace {

struct SentValue {
  ValueId value;
  DeviceId from;
  std::vector<DeviceId> to;  // ascending
  Duration ready;
  std::optional<Duration> start = {}, arrival = {};
  bool came = false;
};

class PlacementReference {
 public:
  PlacementReference(const Instance& instance, const Rules& rules, const DeviceOrders& orders,
                     std::span<const DeviceId> assignment)
      : i_(instance), rules_(rules), orders_(orders), assignment_(assignment) {}

  Timeline run() {
    line_.start.resize(i_.tasks());
    line_.end.resize(i_.tasks());
    ready_.resize(i_.tasks());
    free_.resize(i_.devices());
    running_.resize(i_.devices());
    ran_.resize(i_.devices());
    for (std::size_t task = 0; task < i_.tasks(); ++task) left_.emplace(task);
    do {
      while (happens()) {
      }
    } while (next_instant());
    for (const std::vector<TaskId>& ran : ran_) {
      line_.lists.items.insert(line_.lists.items.end(), ran.begin(), ran.end());
      line_.lists.close();
    }
    for (const SentValue& m : flying_) {
      for (const DeviceId to : m.to) {
        if (m.start) line_.messages.push_back({m.value, m.from, to, *m.start, *m.arrival});
      }
    }
    std::sort(line_.messages.begin(), line_.messages.end(), [](const auto& a, const auto& b) {
      return std::tuple(a.start, a.value, a.to) < std::tuple(b.start, b.value, b.to);
    });
    line_.evaluated.deadlock = !left_.empty();
    return line_;
  }

 private:
  DeviceId device(TaskId task) const { return assignment_[i_.unit[task.index()].index()]; }
  bool waits_for(TaskId task, ValueId value) const {
    const bool here_only = !i_.here_only.empty() && i_.here_only[value.index()] != 0;
    return !here_only || device(task) == device(i_.producer[value.index()]);
  }
  bool is_there(TaskId task) const {
    for (const ValueId value : i_.reads[task.index()]) {
      if (waits_for(task, value) && there_.count({value, device(task)}) == 0) return false;
    }
    return true;
  }

  // One round of an instant; whether anything happened.
  bool happens() {
    bool any = false;
    for (std::size_t d = 0; d < i_.devices(); ++d) {
      if (!running_[d] || line_.end[running_[d]->index()] > now_) continue;
      ends(*running_[d], DeviceId(d));
      running_[d].reset();
      any = true;
    }
    any = serve() || any;
    for (SentValue& m : flying_) {
      if (m.came || !m.arrival || *m.arrival > now_) continue;
      m.came = any = true;
      for (const DeviceId to : m.to) there_.emplace(m.value, to);
    }
    for (const TaskId task : left_) {
      if (!ready_[task.index()] && is_there(task)) ready_[task.index()] = now_;
    }
    for (std::size_t d = 0; d < i_.devices(); ++d) any = takes(DeviceId(d)) || any;
    return any;
  }

  void ends(TaskId task, DeviceId here) {
    for (const ValueId value : i_.produces[task.index()]) {
      there_.emplace(value, here);
      std::set<DeviceId> to;
      for (const TaskId reader : i_.readers[value.index()]) {
        if (waits_for(reader, value) && device(reader) != here) to.insert(device(reader));
      }
      if (to.empty()) continue;
      if (rules_.copies == Rules::Copies::kOneForAll) {
        post({value, here, {to.begin(), to.end()}, {}});
      } else {
        for (const DeviceId one : to) post({value, here, {one}, {}});
      }
    }
    if (worked_.count(task) > 0) free_[here.index()] += rules_.busy_after;
  }

  Duration hold(const SentValue& m, DeviceId to) const {
    const Bytes bytes = i_.bytes[m.value.index()];
    return rules_.bandwidth ? transfer_time(bytes, *rules_.bandwidth) : i_.way(m.from, to).hold(bytes);
  }
  Duration takes_to(const SentValue& m, DeviceId to) const {
    return hold(m, to) + (rules_.bandwidth ? Duration() : i_.way(m.from, to).latency);
  }
  DeviceId slowest(const SentValue& m) const {
    DeviceId result = m.to.front();
    for (const DeviceId to : m.to) {
      if (takes_to(m, to) > takes_to(m, result)) result = to;
    }
    return result;
  }

  void post(SentValue m) {
    Duration& free = free_[m.from.index()];
    if (!rules_.bandwidth) free += i_.way(m.from, slowest(m)).send.of(i_.bytes[m.value.index()]);
    m.ready = free;
    flying_.push_back(m);
  }

  // Messages that are ready now begin as soon as all that they hold is free: smallest sender, value, receiver
  // first.
  bool serve() {
    std::vector<SentValue*> now;
    for (SentValue& m : flying_) {
      if (!m.start && m.ready <= now_) now.push_back(&m);
    }
    std::sort(now.begin(), now.end(), [](const SentValue* a, const SentValue* b) {
      return std::tuple(a->from, a->value, a->to) < std::tuple(b->from, b->value, b->to);
    });
    for (SentValue* const m : now) {
      const DeviceId to = slowest(*m);
      std::vector<std::uint32_t> holds;
      if (rules_.sends == Rules::Sends::kRoutes) holds = i_.way(m->from, to).links;
      if (rules_.sends == Rules::Sends::kSenderBus) holds = {narrow(m->from.index())};
      Duration start = now_;
      for (const std::uint32_t link : holds) start = std::max(start, link_free_[link]);
      for (const std::uint32_t link : holds) link_free_[link] = start + hold(*m, to) + rules_.bus_busy_after;
      m->start = start;
      m->arrival = start + takes_to(*m, to);
    }
    return !now.empty();
  }

  bool takes(DeviceId here) {
    const std::size_t d = here.index();
    if (running_[d] || free_[d] > now_) return false;
    std::optional<TaskId> best;
    if (rules_.order == Rules::Order::kListed) {
      const auto list = orders_.lists[d];
      if (ran_[d].size() < list.size() && ready_[list[ran_[d].size()].index()]) best = list[ran_[d].size()];
    } else {
      for (const TaskId task : left_) {
        if (device(task) == here && ready_[task.index()] && (!best || before(task, *best))) best = task;
      }
    }
    if (!best) return false;
    left_.erase(*best);
    ran_[d].push_back(*best);
    running_[d] = best;
    line_.start[best->index()] = now_;
    line_.end[best->index()] = free_[d] = now_ + time_of(*best, here);
    return true;
  }

  bool before(TaskId a, TaskId b) const {
    if (rules_.order == Rules::Order::kFirstReady) {
      return std::pair(*ready_[a.index()], a) < std::pair(*ready_[b.index()], b);
    }
    if (orders_.priority.empty()) return a < b;
    return std::pair(orders_.priority[a.index()], a) < std::pair(orders_.priority[b.index()], b);
  }

  Duration time_of(TaskId task, DeviceId here) {
    Duration time = i_.time_on(task, here);
    for (const std::uint32_t copy : i_.duplicates[task.index()]) {
      if (copied_.emplace(copy, here).second) {
        time += i_.duplicate_time[copy * i_.kinds + i_.kind[here.index()].index()];
      }
    }
    if (time > Duration()) worked_.insert(task);
    for (const ValueId value : i_.reads[task.index()]) {
      const DeviceId from = device(i_.producer[value.index()]);
      if (rules_.bandwidth || from == here || !waits_for(task, value)) continue;
      if (noticed_.emplace(value, here).second) {
        time += i_.way(from, here).receive.of(i_.bytes[value.index()]);
      }
    }
    return time;
  }

  bool next_instant() {
    std::optional<Duration> next;
    const auto note = [&](Duration time) {
      if (time > now_ && (!next || time < *next)) next = time;
    };
    for (std::size_t d = 0; d < i_.devices(); ++d) {
      if (running_[d]) note(line_.end[running_[d]->index()]);
      note(free_[d]);
    }
    for (const SentValue& m : flying_) {
      note(m.ready);
      if (m.arrival) note(*m.arrival);
    }
    if (next) now_ = *next;
    return next.has_value();
  }

  const Instance& i_;
  const Rules& rules_;
  const DeviceOrders& orders_;
  std::span<const DeviceId> assignment_;
  Timeline line_;
  Duration now_;
  std::set<TaskId> left_, worked_;
  std::vector<std::optional<Duration>> ready_;  // by task
  std::vector<Duration> free_;                  // by device
  std::vector<std::optional<TaskId>> running_;  // by device
  std::vector<std::vector<TaskId>> ran_;        // by device
  std::vector<SentValue> flying_;
  std::set<std::pair<ValueId, DeviceId>> there_, noticed_;
  std::set<std::pair<std::uint32_t, DeviceId>> copied_;
  std::map<std::uint32_t, Duration> link_free_;
};

}  // namespace

Timeline reference_timeline(const Instance& instance, const Rules& rules, const DeviceOrders& orders,
                            std::span<const DeviceId> assignment) {
  return PlacementReference(instance, rules, orders, assignment).run();
}

}  // namespace espalier::testing
