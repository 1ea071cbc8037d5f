#include "espalier/placement/simulation.h"

#include <algorithm>
#include <functional>

#include "espalier/base/check.h"

namespace espalier::placement::internal {
namespace {

using Order = Rules::Order;
constexpr std::uint32_t kFresh = 0x80000000;

template <Order order, class Record>
class Run {
 public:
  Run(const Tables& tables, State& state, Time limit, Record& record)
      : t_(tables), instance_(tables.instance), s_(state), limit_(limit), record_(record) {}

  Evaluated run(std::span<const DeviceId> assignment) {
    cut_ = !place(assignment);
    if (!cut_) {
      begin();
      while (!cut_) {
        const Slots::Event event = s_.slots.least();
        if (event.time > now_) {
          if (choose_all()) continue;
          if (event.time == kNever) break;
          record_.instant({now_, last_, done_}, t_, s_);
          now_ = event.time;
        }
        handle(event.slot);
      }
    }
    return result();
  }

 private:
  // After the devices, and the buses where they have slots.
  std::size_t heap_slot() const { return t_.bus_in_order ? 2 * t_.devices : t_.devices; }
  std::uint32_t device_of(std::uint32_t task) const { return s_.device[task]; }
  Time time_on(std::uint32_t task, std::uint32_t device) const {
    return instance_.time[task * t_.kinds + instance_.kind[device].index()].count();
  }
  std::span<const ValueId> list(const std::vector<ValueId>& items, std::uint32_t begin,
                                std::uint32_t end) const {
    return {items.data() + begin, items.data() + end};
  }
  std::span<const ValueId> reads(std::uint32_t task) const {
    return list(instance_.reads.items, t_.task_rows[task].reads, t_.task_rows[task + 1].reads);
  }
  std::span<const ValueId> produces(std::uint32_t task) const {
    return list(instance_.produces.items, t_.task_rows[task].produces, t_.task_rows[task + 1].produces);
  }
  std::span<const TaskId> readers(std::uint32_t value) const {
    const TaskId* const items = instance_.readers.items.data();
    return {items + t_.value_rows[value].readers, items + t_.value_rows[value + 1].readers};
  }
  std::uint32_t home(std::uint32_t value) const { return device_of(t_.value_rows[value].producer); }
  std::uint32_t& uses(std::uint32_t value, std::uint32_t device) {
    return s_.uses[std::size_t{value} * t_.devices + device];
  }

  // --- the beginning

  void begin() {
    if (record_.from) {
      restore(t_, *record_.from, s_);
      const Clock& clock = record_.from->clock;
      now_ = clock.now;
      last_ = clock.last;
      done_ = clock.done;
      return;
    }
    for (std::size_t task = 0; task < t_.tasks; ++task) {
      if (s_.waits[task] == 0) make_ready(narrow(task));
    }
  }

  // False: a device has more to do than the limit allows.
  bool place(std::span<const DeviceId> assignment) {
    ESP_CHECK(assignment.size() == instance_.units(), assignment.size(), instance_.units());
    s_.device.resize(t_.tasks);
    s_.devices.assign(t_.devices, {});
    std::vector<std::uint32_t>& count = s_.seen;
    count.assign(t_.devices, 0);
    for (std::size_t unit = 0; unit < assignment.size(); ++unit) {
      const std::size_t device = assignment[unit].index();
      const auto tasks = instance_.tasks_of[unit];
      for (const TaskId task : tasks) s_.device[task.index()] = static_cast<std::uint16_t>(device);
      count[device] += narrow(tasks.size());
    }
    if (limit_ != kNever && too_much_work()) return false;
    std::uint32_t before = 0;
    for (std::size_t d = 0; d < t_.devices; ++d) {
      s_.devices[d].begin = s_.devices[d].end = s_.devices[d].same = before;
      before += count[d];
    }
    s_.queue.resize(t_.tasks);
    s_.waits = t_.waits;
    for (const std::uint32_t value : t_.here_only) {
      const std::uint32_t here = home(value);
      for (const TaskId reader : readers(value)) {
        if (device_of(narrow(reader.index())) != here) --s_.waits[reader.index()];
      }
    }
    s_.waited = s_.waits;
    s_.uses.resize(t_.values * t_.devices);
    s_.copied.assign(t_.kinds == 0 ? 0 : instance_.duplicate_time.size() / t_.kinds * t_.devices, 0);
    s_.dirty.assign((t_.devices + 63) / 64, 0);
    s_.slots.reset(heap_slot() + 1);
    s_.buses.resize(t_.devices);
    for (Bus& bus : s_.buses) {
      bus.queue.clear();
      bus.to_start = bus.to_arrive = 0;
      bus.free = 0;
    }
    s_.link_free.assign(t_.link_count, 0);
    s_.messages.clear();
    s_.pending.clear();
    reset_order();
    hold_residents(assignment);
    return true;
  }

  bool too_much_work() const {
    std::vector<Time>& work = s_.work;
    work.assign(t_.devices, 0);
    for (std::size_t task = 0; task < t_.tasks; ++task) {
      const std::uint32_t device = device_of(narrow(task));
      work[device] += time_on(narrow(task), device);
    }
    return *std::max_element(work.begin(), work.end()) >= limit_;
  }

  void reset_order() {
    if constexpr (order == Order::kPriority) {
      s_.ready.resize(t_.devices);
      for (RankSet& set : s_.ready) set.reset(t_.tasks);
    }
    if constexpr (order == Order::kListed) {
      for (std::size_t task = 0; task < t_.tasks; ++task) {
        ESP_CHECK(t_.listed_on[task] == s_.device[task], task, t_.listed_on[task], s_.device[task]);
      }
      for (std::size_t d = 0; d < t_.devices; ++d) s_.devices[d].begin = s_.devices[d].end = 0;
    }
  }

  void hold_residents(std::span<const DeviceId> assignment) {
    s_.seen.assign(t_.devices, 0xffffffff);
    s_.resident.assign(t_.devices, 0);
    for (std::uint32_t resident = 0; resident < t_.units_with.size(); ++resident) {
      const std::int64_t bytes = instance_.resident_bytes[resident].count();
      for (const std::uint32_t unit : t_.units_with[resident]) {
        const std::size_t device = assignment[unit].index();
        if (s_.seen[device] == resident) continue;
        s_.seen[device] = resident;
        s_.resident[device] += bytes;
      }
    }
  }

  // --- events

  void handle(std::uint32_t slot) {
    if (slot < t_.devices) {
      if (s_.devices[slot].phase == DeviceState::Phase::kRuns) {
        end_task(slot);
      } else {
        become_free(slot);
      }
    } else if (slot != heap_slot()) {
      advance_bus(slot - narrow(t_.devices));
    } else {
      handle_pending();
    }
  }

  void become_free(std::uint32_t device) {
    s_.devices[device].phase = DeviceState::Phase::kFree;
    s_.slots.set(device, kNever);
    mark(device);
  }
  void mark(std::uint32_t device) {
    s_.dirty[device / 64] |= std::uint64_t{1} << (device % 64);
    any_dirty_ = true;
  }

  void end_task(std::uint32_t device) {
    DeviceState& state = s_.devices[device];
    const std::uint32_t task = state.task;
    ++done_;
    last_ = now_;
    s_.waits[task] = State::kEnded;
    Time sent = now_;
    for (const ValueId value : produces(task)) sent = give(narrow(value.index()), device, sent);
    if (live() && t_.task_rows[task].workspace != 0) hold(device, -t_.task_rows[task].workspace);
    for (const ValueId value : reads(task)) {
      const std::uint32_t v = narrow(value.index());
      if (!t_.value_rows[v].here_only || home(v) == device) drop_use(v, device);
    }
    const Time free = sent + (state.worked ? t_.rules.busy_after.count() : 0);
    if (free > now_) {
      state.phase = DeviceState::Phase::kBusy;
      s_.slots.set(device, free);
    } else {
      become_free(device);
    }
  }

  // Counts who needs the value where, tells those nearby, sends it to the others. Returns when the device has
  // sent it.
  Time give(std::uint32_t value, std::uint32_t device, Time sent) {
    std::uint32_t* const counts = &uses(value, 0);
    std::fill_n(counts, t_.devices, 0);
    s_.targets.clear();
    const bool far = !t_.value_rows[value].here_only;
    for (const TaskId reader : readers(value)) {
      const std::uint32_t task = narrow(reader.index()), where = device_of(task);
      if (where == device) {
        ++counts[where];
        if (--s_.waits[task] == 0) make_ready(task);
      } else if (far && counts[where]++ == 0) {
        s_.targets.push_back(where);
      }
    }
    if (t_.shared) {
      for (const std::uint32_t inner : t_.kept_by[value]) {
        ++counts[home(inner)];
      }
    }
    if (!s_.targets.empty()) sent = send(value, device, sent);
    if (counts[device] == 0) release(value, device);
    return sent;
  }

  Time send(std::uint32_t value, std::uint32_t from, Time sent) {
    std::sort(s_.targets.begin(), s_.targets.end());
    if (t_.endpoints) {
      for (const std::uint32_t to : s_.targets) uses(value, to) |= kFresh;
    }
    if (t_.rules.copies == Rules::Copies::kOneForAll) return post({value, from, Sent::kAll, 0, 0}, sent);
    for (const std::uint32_t to : s_.targets) sent = post({value, from, to, 0, 0}, sent);
    return sent;
  }

  Time post(const Sent& message, Time sent) {
    ++uses(message.value, message.from);
    if (!t_.endpoints) {
      start_message(message);
      return sent;
    }
    const Route& way = instance_.way(DeviceId(message.from), DeviceId(way_end(message)));
    sent += way.send.of(instance_.bytes[message.value]).count();
    add_pending(Pending::What::kSend, sent, message);
    return sent;
  }

  // The device that the message goes to; of several the one that takes longest to reach.
  std::uint32_t way_end(const Sent& message) const {
    if (message.to != Sent::kAll) return message.to;
    if (t_.equal_ways) return message.from == 0 ? 1 : 0;
    std::uint32_t end = 0;
    Time longest = -1;
    for_targets(message, [&](std::uint32_t to) {
      const Passage& way = t_.passage(message.from, to);
      const Time time = t_.hold_of(message.value, way) + way.latency;
      if (time > longest) {
        longest = time;
        end = to;
      }
    });
    return end;
  }

  // The devices that it goes to, ascending. It has not begun, so all their readers still need it.
  template <class Visit>
  void for_targets(const Sent& message, Visit visit) const {
    if (message.to != Sent::kAll) return visit(message.to);
    const std::uint32_t* const counts = s_.uses.data() + std::size_t{message.value} * t_.devices;
    for (std::uint32_t to = 0; to < t_.devices; ++to) {
      if (to != message.from && counts[to] != 0) visit(to);
    }
  }

  // It is ready now: when it begins and arrives is decided.
  void start_message(Sent message) {
    const Passage& way = t_.passage(message.from, way_end(message));
    const Time hold = t_.hold_of(message.value, way), after = t_.rules.bus_busy_after.count();
    message.start = now_;
    if (t_.bus_in_order) {
      Bus& bus = s_.buses[message.from];
      message.start = std::max(now_, bus.free);
      message.arrival = message.start + hold + way.latency;
      bus.free = message.start + hold + after;
      bus.queue.push_back(message);
      record_.message(message);
      advance_bus(message.from);
      return;
    }
    for (std::uint32_t i = way.link_begin; i < way.link_end; ++i) {
      message.start = std::max(message.start, s_.link_free[t_.links[i]]);
    }
    message.arrival = message.start + hold + way.latency;
    for (std::uint32_t i = way.link_begin; i < way.link_end; ++i) {
      s_.link_free[t_.links[i]] = message.start + hold + after;
    }
    record_.message(message);
    if (message.start == now_) {
      begin_copy(message);
      add_pending(Pending::What::kArrive, message.arrival, message);
    } else {
      add_pending(Pending::What::kStart, message.start, message);
    }
  }

  void advance_bus(std::uint32_t device) {
    Bus& bus = s_.buses[device];
    const std::size_t end = bus.queue.size();
    for (; bus.to_start < end && bus.queue[bus.to_start].start <= now_; ++bus.to_start) {
      begin_copy(bus.queue[bus.to_start]);
    }
    for (; bus.to_arrive < bus.to_start && bus.queue[bus.to_arrive].arrival <= now_; ++bus.to_arrive) {
      arrive(bus.queue[bus.to_arrive]);
    }
    Time next = bus.to_start < end ? bus.queue[bus.to_start].start : kNever;
    if (bus.to_arrive < bus.to_start) next = std::min(next, bus.queue[bus.to_arrive].arrival);
    s_.slots.set(t_.devices + device, next);
  }

  void add_pending(Pending::What what, Time time, const Sent& message) {
    std::uint64_t place = 0;
    if (what == Pending::What::kSend) {
      place = ((std::uint64_t{message.from} << 32) | message.value) + 1;  // then by number, so by receiver
    }
    s_.messages.push_back(message);
    s_.pending.push_back({time, place, what, narrow(s_.messages.size() - 1)});
    std::push_heap(s_.pending.begin(), s_.pending.end(), std::greater<>());
    s_.slots.set(heap_slot(), s_.pending.front().time);
  }

  void handle_pending() {
    std::pop_heap(s_.pending.begin(), s_.pending.end(), std::greater<>());
    const Pending event = s_.pending.back();
    s_.pending.pop_back();
    s_.slots.set(heap_slot(), s_.pending.empty() ? kNever : s_.pending.front().time);
    const Sent message = s_.messages[event.message];
    switch (event.what) {
      case Pending::What::kSend:
        return start_message(message);
      case Pending::What::kStart:
        begin_copy(message);
        return add_pending(Pending::What::kArrive, message.arrival, message);
      case Pending::What::kArrive:
        return arrive(message);
    }
  }

  void begin_copy(const Sent& message) {
    const std::int64_t bytes = t_.value_rows[message.value].bytes;
    if (bytes == 0) return;
    for_targets(message, [&](std::uint32_t to) { hold(to, bytes); });
  }

  void arrive(const Sent& message) {
    for (const TaskId reader : readers(message.value)) {
      const std::uint32_t task = narrow(reader.index()), where = device_of(task);
      const bool here = message.to == Sent::kAll ? where != message.from : where == message.to;
      if (here && --s_.waits[task] == 0) make_ready(task);
    }
    drop_use(message.value, message.from);
  }

  // --- tasks

  void make_ready(std::uint32_t task) {
    const std::uint32_t device = device_of(task);
    DeviceState& state = s_.devices[device];
    if constexpr (order == Order::kPriority) {
      s_.ready[device].insert(t_.rank[task]);
    } else if constexpr (order == Order::kFirstReady) {
      if (state.came != now_) {
        state.came = now_;
        state.same = state.end;
      }
      std::uint32_t place = state.end++;  // of those that came at this instant the smaller first
      const std::uint32_t least = std::max(state.same, state.begin);
      for (; place > least && s_.queue[place - 1] > task; --place) s_.queue[place] = s_.queue[place - 1];
      s_.queue[place] = task;
    }
    if (state.phase == DeviceState::Phase::kFree) mark(device);
  }

  bool has_ready(std::uint32_t device) const {
    const DeviceState& state = s_.devices[device];
    if constexpr (order == Order::kPriority) {
      return !s_.ready[device].empty();
    } else if constexpr (order == Order::kFirstReady) {
      return state.begin != state.end;
    } else {
      const auto list = t_.orders.lists[device];
      return state.begin < list.size() && s_.waits[list[state.begin].index()] == 0;
    }
  }

  std::uint32_t take(std::uint32_t device) {
    DeviceState& state = s_.devices[device];
    if constexpr (order == Order::kPriority) {
      return t_.of_rank[s_.ready[device].pop()];
    } else if constexpr (order == Order::kFirstReady) {
      return s_.queue[state.begin++];
    } else {
      return narrow(t_.orders.lists[device][state.begin++].index());
    }
  }

  // Whether any device may have taken a task.
  bool choose_all() {
    if (!any_dirty_) return false;
    any_dirty_ = false;
    for (std::size_t word = 0; word < s_.dirty.size(); ++word) {
      while (s_.dirty[word] != 0) {
        const auto device = narrow(64 * word + static_cast<std::size_t>(__builtin_ctzll(s_.dirty[word])));
        s_.dirty[word] &= s_.dirty[word] - 1;
        if (s_.devices[device].phase == DeviceState::Phase::kFree && has_ready(device)) {
          start_task(take(device), device);
        }
      }
    }
    return true;
  }

  void start_task(std::uint32_t task, std::uint32_t device) {
    if (now_ + t_.task_rows[task].bottom >= limit_) cut_ = true;
    DeviceState& state = s_.devices[device];
    Time work = time_on(task, device);
    for (std::uint32_t i = t_.task_rows[task].copies; i < t_.task_rows[task + 1].copies; ++i) {
      const std::uint32_t copy = instance_.duplicates.items[i];
      char& done = s_.copied[copy * t_.devices + device];
      if (done == 0)
        work += instance_.duplicate_time[copy * t_.kinds + instance_.kind[device].index()].count();
      done = 1;
    }
    const Time end = now_ + work + (t_.endpoints ? receive(task, device) : 0);
    for (const ValueId value : produces(task)) {
      const std::int64_t bytes = t_.value_rows[value.index()].own_bytes;
      if (bytes != 0) hold(device, bytes);
    }
    const std::int64_t workspace = t_.task_rows[task].workspace;
    if (live() && workspace != 0) hold(device, workspace);
    if (end > now_) state.workspace = std::max(state.workspace, workspace);
    state.phase = DeviceState::Phase::kRuns;
    state.task = task;
    state.worked = work > 0;
    s_.slots.set(device, end);
    record_.task(task, now_, end, device);
  }

  // What the device pays for messages that it takes notice of with this task.
  Time receive(std::uint32_t task, std::uint32_t device) {
    Time time = 0;
    for (const ValueId value : reads(task)) {
      const std::uint32_t v = narrow(value.index());
      const std::uint32_t from = home(v);
      if (from == device || t_.value_rows[v].here_only) continue;
      std::uint32_t& count = uses(v, device);
      if ((count & kFresh) == 0) continue;
      count &= ~kFresh;
      time += instance_.way(DeviceId(from), DeviceId(device)).receive.of(instance_.bytes[v]).count();
    }
    return time;
  }

  // --- memory

  bool live() const { return t_.rules.memory == Rules::Memory::kLive; }

  void hold(std::uint32_t device, std::int64_t bytes) {
    DeviceState& state = s_.devices[device];
    if (state.changed != now_) {
      state.peak = std::max(state.peak, state.held);
      state.changed = now_;
    }
    state.held += bytes;
  }

  void drop_use(std::uint32_t value, std::uint32_t device) {
    if (--uses(value, device) == 0) release(value, device);
  }

  // Nobody needs the value on the device any more, nor what it shares memory with for its sake.
  void release(std::uint32_t value, std::uint32_t device) {
    for (;;) {
      const bool made_here = home(value) == device;
      const std::int64_t bytes = made_here ? t_.value_rows[value].own_bytes : t_.value_rows[value].bytes;
      if (bytes != 0 && live()) hold(device, -bytes);
      if (!made_here || t_.value_rows[value].within == value) return;
      value = t_.value_rows[value].within;
      if (--uses(value, device) != 0) return;
    }
  }

  Evaluated result() {
    Evaluated evaluated;
    if (cut_ || last_ >= limit_) {
      evaluated.cut_off = true;
      return evaluated;
    }
    evaluated.time = Duration(last_);
    if (done_ != t_.tasks) {
      evaluated.deadlock = true;
      return evaluated;
    }
    s_.peak.resize(t_.devices);
    for (std::size_t d = 0; d < t_.devices; ++d) {
      const DeviceState& state = s_.devices[d];
      s_.peak[d] =
          Bytes(s_.resident[d] + (live() ? std::max(state.peak, state.held) : state.held + state.workspace));
      if (s_.peak[d] > instance_.memory[d]) {
        evaluated.fits = false;
        evaluated.lack += s_.peak[d] - instance_.memory[d];
      }
    }
    return evaluated;
  }

  const Tables& t_;
  const Instance& instance_;
  State& s_;
  const Time limit_;
  Record& record_;
  Time now_ = 0, last_ = 0;
  std::size_t done_ = 0;
  bool cut_ = false, any_dirty_ = false;
};

}  // namespace

template <class Record>
Evaluated simulate(const Tables& tables, std::span<const DeviceId> assignment, State& state, Time limit,
                   Record& record) {
  switch (tables.rules.order) {
    case Order::kFirstReady:
      return Run<Order::kFirstReady, Record>(tables, state, limit, record).run(assignment);
    case Order::kPriority:
      return Run<Order::kPriority, Record>(tables, state, limit, record).run(assignment);
    case Order::kListed:
      break;
  }
  return Run<Order::kListed, Record>(tables, state, limit, record).run(assignment);
}

template Evaluated simulate(const Tables&, std::span<const DeviceId>, State&, Time, NoRecord&);
template Evaluated simulate(const Tables&, std::span<const DeviceId>, State&, Time, FullRecord&);
template Evaluated simulate(const Tables&, std::span<const DeviceId>, State&, Time, BaseRecord&);

}  // namespace espalier::placement::internal
