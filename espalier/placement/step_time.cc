#include "espalier/placement/step_time.h"

#include <algorithm>
#include <functional>

#include "espalier/base/check.h"
#include "espalier/placement/step_snapshot.h"

namespace espalier::placement::internal {
namespace {

using Order = Rules::Order;
constexpr std::uint32_t kNobody = StepDevice::kNone;
constexpr std::uint32_t kOneWait = StepTables::kOneWait;
constexpr std::size_t kLeastStep = 12;  // tasks between two snapshots

bool later(const Flight& a, const Flight& b) {
  return a.arrival > b.arrival;
}

// kLook: words are made when they are first asked for, as of the snapshot that the run went on from.
template <Order order, bool kLook>
class StepRun {
 public:
  StepRun(const Tables& tables, const StepTables& step, StepState& state, Time limit)
      : t_(tables),
        q_(step),
        instance_(tables.instance),
        s_(state),
        limit_(limit),
        busy_(tables.rules.busy_after.count()) {}

  StepTime evaluate(std::span<const DeviceId> assignment) {
    place(assignment);
    if (s_.notes_times) s_.begin_times(t_);
    for (const std::uint32_t task : q_.sources) make_ready_if_free(task);
    return go();
  }

  StepTime look(StepBase& base, const StepChange& change, Recording record) {
    base_ = &base;
    change_ = &change;
    recording_ = record == Recording::kYes;
    s_.word.resize(t_.tasks);
    s_.stamp.resize(t_.tasks);
    if (s_.notes_times) s_.begin_times(t_);
    old_.swap(base.snapshots);
    const std::size_t first = change.from_start ? 0 : before(change.noticed.empty() ? 0 : change.noticed[0]);
    if (recording_) {
      move_work(base.start, 0);
      for (std::size_t i = 0; i < first; ++i) {
        base.snapshots.push_back(std::move(old_[i]));
        move_work(base.snapshots.back().devices, base.snapshots.back().done);
      }
    }
    if (first == 0) {
      start_look();
    } else {
      go_on_from(recording_ ? base.snapshots.back() : old_[first - 1], 0);
    }
    watched_ = first;
    StepTime result = go();
    if (recording_) {
      ESP_CHECK(!result.cut_off);
      base.time = result.time;
    } else {
      old_.swap(base.snapshots);
    }
    return result;
  }

 private:
  std::uint32_t message_slot() const { return narrow(t_.devices); }
  Time time_on(std::uint32_t task, std::uint32_t device) const {
    return instance_.time[task * t_.kinds + instance_.kind[device].index()].count();
  }
  std::span<const TaskId> readers(std::uint32_t value) const {
    const TaskId* const items = instance_.readers.items.data();
    return {items + t_.value_rows[value].readers, items + t_.value_rows[value + 1].readers};
  }

  // --- the beginning

  void clear() {
    s_.clear(t_);
    if constexpr (order == Order::kPriority && kLook) {
      s_.ranks.resize(t_.devices);
      for (std::vector<std::uint32_t>& heap : s_.ranks) heap.clear();
    }
    if constexpr (order == Order::kPriority && !kLook) {
      s_.ready.resize(t_.devices);
      for (RankSet& set : s_.ready) set.reset(t_.tasks);
    }
    dirty_ = 0;
  }

  void place(std::span<const DeviceId> assignment) {
    ESP_CHECK(assignment.size() == instance_.units(), assignment.size(), instance_.units());
    clear();
    s_.held.assign(t_.devices, q_.most_workspace);
    for (std::size_t unit = 0; unit < assignment.size(); ++unit) {
      s_.held[assignment[unit].index()] += q_.unit_bytes[unit];
    }
    s_.word.resize(t_.tasks);
    if (limit_ == kNever) {
      for (std::size_t task = 0; task < t_.tasks; ++task) {
        s_.word[task] = q_.wait_words[task] + narrow(assignment[t_.task_rows[task].unit].index());
      }
    } else {
      for (std::size_t task = 0; task < t_.tasks; ++task) {
        const std::uint32_t device = narrow(assignment[t_.task_rows[task].unit].index());
        s_.word[task] = q_.wait_words[task] + device;
        s_.devices[device].left += time_with_rest(t_, narrow(task), device);
      }
    }
    for (const std::uint32_t value : t_.here_only) {
      const std::uint32_t home = s_.word[t_.value_rows[value].producer] % kOneWait;
      for (const TaskId reader : readers(value)) {
        std::uint32_t& word = s_.word[reader.index()];
        if (word % kOneWait != home) word -= kOneWait;
      }
    }
    s_.seen.assign(t_.devices, kNobody);
    for (std::uint32_t resident = 0; resident < t_.units_with.size(); ++resident) {
      for (const std::uint32_t unit : t_.units_with[resident]) {
        const std::size_t device = assignment[unit].index();
        if (s_.seen[device] == resident) continue;
        s_.seen[device] = resident;
        s_.held[device] += instance_.resident_bytes[resident].count();
      }
    }
  }

  void start_look() {
    clear();
    new_words(0);
    s_.held.assign(t_.devices, 0);
    s_.devices = base_->start;
    if (!recording_) move_work(s_.devices, 0);
    for (const std::uint32_t task : q_.sources) make_ready_if_free(task);
  }

  void make_ready_if_free(std::uint32_t task) {
    const std::uint32_t word = word_of(task);
    if (word < kOneWait) make_ready(task, word);
  }

  // Words are as of the base's first `behind` tasks.
  void new_words(std::uint32_t behind) {
    behind_ = behind;
    most_ = 0;
    if (++s_.look == 0) {
      std::fill(s_.stamp.begin(), s_.stamp.end(), 0);
      s_.look = 1;
    }
  }

  std::uint32_t& word_of(std::uint32_t task) {
    if constexpr (kLook) {
      if (s_.stamp[task] != s_.look) {
        s_.stamp[task] = s_.look;
        s_.word[task] = first_word(task);
      }
    }
    return s_.word[task];
  }
  std::uint32_t first_word(std::uint32_t task) const {
    const std::uint32_t* const position = base_->position.data();
    const std::uint32_t device = base_->device[task];
    std::uint32_t waits = 0;
    for (std::uint32_t i = q_.in_begin[task]; i < q_.in_begin[task + 1]; ++i) {
      waits += position[q_.ins[i]] >= behind_ ? 1 : 0;
    }
    for (const std::uint32_t giver : q_.order_ins[task]) {
      waits += base_->device[giver] == device && position[giver] >= behind_ ? 1 : 0;
    }
    return waits * kOneWait + device;
  }

  // --- the run

  StepTime go() {
    while (!cut_) {
      const std::int64_t key = s_.events.least();
      if (NextEvents::time_of(key) > now_) {
        if (dirty_ != 0 && choose_all()) continue;
        if constexpr (kLook) {
          if (at_instant()) continue;
          if (finished_) break;
        }
        if (key == kNever) break;
        now_ = NextEvents::time_of(key);
      }
      const std::uint32_t slot = NextEvents::slot_of(key);
      if (slot != message_slot()) {
        device_event(slot);
      } else {
        arrivals();
      }
    }
    if (cut_ || last_ >= limit_) return {true, 0};
    ESP_CHECK(finished_ || done_ == t_.tasks, done_, t_.tasks);
    return {false, last_};
  }

  void device_event(std::uint32_t d) {
    StepDevice& device = s_.devices[d];
    if (device.task == kNobody) {  // it has rested
      s_.events.clear(d);
      dirty_ |= std::uint64_t{1} << d;
      return;
    }
    const std::uint32_t task = device.task;
    note_end(task);
    if (s_.notes_times) {
      s_.ended[task] = s_.look_of_times;
      s_.end[task] = now_;
    }
    ++done_;
    last_ = now_;
    device.task = kNobody;
    device.free = now_ + (device.worked ? busy_ : 0);
    std::uint32_t i = q_.out_begin[task];
    const std::uint32_t end = q_.out_begin[task + 1];
    bool far = false;
    std::size_t came = 0;
    if (end - i > s_.came.size()) s_.came.resize(end - i);
    for (; i < end; ++i) {
      const std::uint32_t reader = q_.outs[i];
      std::uint32_t& word = word_of(reader);
      const bool here = word % kOneWait == d;
      word -= here ? kOneWait : 0;
      far |= !here;
      s_.came[came] = reader;
      came += here && word < kOneWait ? 1 : 0;
    }
    for (std::size_t k = 0; k < came; ++k) make_ready(s_.came[k], d);
    if (far) send_all(task, d);
    s_.events.clear(d);
    if constexpr (order == Order::kFirstReady) {
      if (device.free > now_ && device.head != kNobody && (device.came != now_ || device.before != kNobody) &&
          time_on(device.head, d) > 0) {
        start(d, device.free);
        return;
      }
    } else if (device.free > now_) {
      s_.events.set(d, device.free);
      return;
    }
    dirty_ |= std::uint64_t{1} << d;
  }

  void make_ready(std::uint32_t task, std::uint32_t d) {
    StepDevice& device = s_.devices[d];
    if constexpr (order == Order::kFirstReady) {
      if (device.came != now_) {
        device.came = now_;
        device.before = device.head == kNobody ? kNobody : device.tail;
      }
      if (device.head == kNobody) {
        device.head = device.tail = task;
        s_.next[task] = kNobody;
      } else if (device.tail == device.before || device.tail < task) {
        s_.next[device.tail] = task;
        s_.next[task] = kNobody;
        device.tail = task;
      } else {
        std::uint32_t* link = device.before == kNobody ? &device.head : &s_.next[device.before];
        while (*link < task) link = &s_.next[*link];
        s_.next[task] = *link;
        *link = task;
      }
    } else if constexpr (kLook) {
      s_.ranks[d].push_back(t_.rank[task]);
      std::push_heap(s_.ranks[d].begin(), s_.ranks[d].end(), std::greater<>());
    } else {
      s_.ready[d].insert(t_.rank[task]);
    }
    dirty_ |= std::uint64_t{device.task == kNobody} << d;
  }

  bool has_ready(std::uint32_t d) const {
    if constexpr (order == Order::kFirstReady) {
      return s_.devices[d].head != kNobody;
    } else if constexpr (kLook) {
      return !s_.ranks[d].empty();
    } else {
      return !s_.ready[d].empty();
    }
  }

  std::uint32_t take(std::uint32_t d) {
    if constexpr (order == Order::kFirstReady) {
      StepDevice& device = s_.devices[d];
      const std::uint32_t task = device.head;
      device.head = s_.next[task];
      if (device.before == task) device.before = kNobody;
      return task;
    } else if constexpr (kLook) {
      std::pop_heap(s_.ranks[d].begin(), s_.ranks[d].end(), std::greater<>());
      const std::uint32_t rank = s_.ranks[d].back();
      s_.ranks[d].pop_back();
      return t_.of_rank[rank];
    } else {
      return t_.of_rank[s_.ready[d].pop()];
    }
  }

  // Free devices take tasks; once nothing more can happen at this instant, those that rest know their next
  // one. Whether any has begun.
  bool choose_all() {
    bool any = false, again = false;
    std::uint64_t resting = 0;
    while (dirty_ != 0) {
      const auto d = static_cast<std::uint32_t>(__builtin_ctzll(dirty_));
      dirty_ &= dirty_ - 1;
      StepDevice& device = s_.devices[d];
      if (device.task != kNobody || !has_ready(d)) continue;
      if (device.free > now_) {
        resting |= std::uint64_t{1} << d;
        continue;
      }
      again = start(d, now_) == now_ || again;
      any = true;
    }
    if constexpr (order == Order::kFirstReady) {
      if (again) {
        dirty_ = resting;
        return true;
      }
      for (; resting != 0; resting &= resting - 1) {
        const auto d = static_cast<std::uint32_t>(__builtin_ctzll(resting));
        const StepDevice& device = s_.devices[d];
        if (time_on(device.head, d) > 0) {
          start(d, device.free);
        } else {
          s_.events.set(d, device.free);
        }
        any = true;
      }
    }
    return any;
  }

  Time start(std::uint32_t d, Time begin) {
    StepDevice& device = s_.devices[d];
    const std::uint32_t task = take(d);
    Time work = time_on(task, d);
    if (limit_ != kNever) {
      if (begin + std::max(t_.task_rows[task].bottom, device.left - busy_) >= limit_) cut_ = true;
    }
    device.left -= work + (work > 0 ? busy_ : 0);
    for (std::uint32_t i = t_.task_rows[task].copies; i < t_.task_rows[task + 1].copies; ++i) {
      const std::uint32_t copy = instance_.duplicates.items[i];
      char& done = s_.copied[copy * t_.devices + d];
      if (done == 0) work += instance_.duplicate_time[copy * t_.kinds + instance_.kind[d].index()].count();
      done = 1;
    }
    device.task = task;
    device.worked = work > 0;
    device.free = begin + work;
    if (s_.notes_times) note_start(task, begin);
    s_.events.set(d, device.free);
    return device.free;
  }

  void note_start(std::uint32_t task, Time begin) {
    s_.started[task] = s_.look_of_times;
    s_.start[task] = begin;
  }

  // --- messages

  void send_all(std::uint32_t task, std::uint32_t d) {
    for (std::uint32_t i = t_.task_rows[task].produces; i < t_.task_rows[task + 1].produces; ++i) {
      const std::uint32_t value = narrow(instance_.produces.items[i].index());
      if (t_.value_rows[value].here_only) continue;
      std::uint64_t to = 0;
      for (const TaskId reader : readers(value)) to |= std::uint64_t{1} << s_.word[reader.index()] % kOneWait;
      to &= ~(std::uint64_t{1} << d);
      if (to == 0) continue;
      if constexpr (!kLook) {
        for (std::uint64_t left = to; left != 0; left &= left - 1) {
          s_.held[static_cast<std::size_t>(__builtin_ctzll(left))] += t_.value_rows[value].bytes;
        }
      }
      if (t_.rules.copies == Rules::Copies::kOneForAll) {
        const MessageTimes times = post(value, d, slowest(value, d, to), Flight::kAll);
        for (; s_.notes_times && to != 0; to &= to - 1) {
          note_message(value, static_cast<std::uint32_t>(__builtin_ctzll(to)), times);
        }
      } else {
        for (; to != 0; to &= to - 1) {
          const auto one = static_cast<std::uint32_t>(__builtin_ctzll(to));
          const MessageTimes times = post(value, d, one, static_cast<std::uint16_t>(one));
          if (s_.notes_times) note_message(value, one, times);
        }
      }
    }
  }

  void note_message(std::uint32_t value, std::uint32_t to, MessageTimes times) {
    std::size_t i = t_.value_rows[value].readers;
    while (s_.word[instance_.readers.items[i].index()] % kOneWait != to) ++i;
    s_.messages[i] = times;
  }

  std::uint32_t slowest(std::uint32_t value, std::uint32_t from, std::uint64_t to) const {
    if (t_.equal_ways) return from == 0 ? 1 : 0;
    std::uint32_t end = 0;
    Time longest = -1;
    for (; to != 0; to &= to - 1) {
      const auto one = static_cast<std::uint32_t>(__builtin_ctzll(to));
      const Passage& way = t_.passage(from, one);
      const Time time = t_.hold_of(value, way) + way.latency;
      if (time > longest) {
        longest = time;
        end = one;
      }
    }
    return end;
  }

  MessageTimes post(std::uint32_t value, std::uint32_t from, std::uint32_t way_end, std::uint16_t to) {
    const Passage& way = t_.passage(from, way_end);
    const Time hold = t_.hold_of(value, way), after = t_.rules.bus_busy_after.count();
    if (t_.bus_in_order) {
      StepBus& bus = s_.buses[from];
      const Time begin = std::max(now_, bus.free), arrival = begin + hold + way.latency;
      bus.free = begin + hold + after;
      if (bus.head == bus.queue.size()) {
        bus.queue.clear();
        bus.head = 0;
        bus.queue.push_back({arrival, value, static_cast<std::uint16_t>(from), to});
        s_.note_bus(t_, from);
      } else {
        bus.queue.push_back({arrival, value, static_cast<std::uint16_t>(from), to});
      }
      return {begin, arrival};
    }
    Time begin = now_;
    for (std::uint32_t i = way.link_begin; i < way.link_end; ++i) {
      begin = std::max(begin, s_.link_free[t_.links[i]]);
    }
    for (std::uint32_t i = way.link_begin; i < way.link_end; ++i) {
      s_.link_free[t_.links[i]] = begin + hold + after;
    }
    const Time arrival = begin + hold + way.latency;
    s_.flights.push_back({arrival, value, static_cast<std::uint16_t>(from), to});
    std::push_heap(s_.flights.begin(), s_.flights.end(), later);
    s_.events.set(message_slot(), s_.flights.front().arrival);
    return {begin, arrival};
  }

  void arrivals() {
    if (t_.bus_in_order) {
      const std::uint32_t from = NextEvents::slot_of(s_.bus_events.least());
      StepBus& bus = s_.buses[from];
      const Flight flight = bus.queue[bus.head++];
      s_.note_bus(t_, from);
      arrive(flight);
      return;
    }
    std::pop_heap(s_.flights.begin(), s_.flights.end(), later);
    const Flight flight = s_.flights.back();
    s_.flights.pop_back();
    if (s_.flights.empty()) {
      s_.events.clear(message_slot());
    } else {
      s_.events.set(message_slot(), s_.flights.front().arrival);
    }
    arrive(flight);
  }

  void arrive(const Flight& flight) {
    for (const TaskId reader : readers(flight.value)) {
      const std::uint32_t task = narrow(reader.index());
      std::uint32_t& word = s_.word[task];
      const std::uint32_t where = word % kOneWait;
      if (flight.to == Flight::kAll ? where == flight.from : where != flight.to) continue;
      word -= kOneWait;
      if (word < kOneWait) make_ready(task, where);
    }
  }

  // --- looks

  // Snapshots at which the base's task of that position has not ended: how many.
  std::size_t before(std::uint32_t position) const {
    const auto at = std::partition_point(old_.begin(), old_.end(),
                                         [&](const StepSnapshot& one) { return one.done <= position; });
    return static_cast<std::size_t>(at - old_.begin());
  }

  void note_end(std::uint32_t task) {
    if constexpr (kLook) {
      std::uint32_t& position = base_->position[task];
      most_ = std::max(most_, position);
      if (recording_) position = narrow(done_);
    }
  }

  // Whether the run has gone on elsewhere. (That the same tasks have ended follows from the rest: it is asked
  // first because it is quick.)
  bool at_instant() {
    if (done_ >= next_done_) {
      while (watched_ < old_.size() && old_[watched_].done < done_) ++watched_;
      next_done_ = watched_ < old_.size() ? old_[watched_].done : StepDevice::kNone;
      if (next_done_ == done_ && most_ < done_ && same(t_, old_[watched_], *change_, now_, s_)) return meet();
    }
    if (recording_) {
      const std::vector<StepSnapshot>& made = base_->snapshots;
      if (done_ >= (made.empty() ? 0 : made.back().done) + gap_ && done_ < t_.tasks) save();
    }
    return false;
  }

  // The base goes on like this run, so many nanoseconds apart.
  bool meet() {
    const Time apart = now_ - old_[watched_].now;
    const auto next = std::lower_bound(change_->noticed.begin(), change_->noticed.end(), done_);
    const std::size_t to = next == change_->noticed.end() ? old_.size() : before(*next);
    const std::size_t from = watched_;
    apart_ = apart;
    if (s_.notes_times) s_.stretches.push_back({old_[from].done, apart});
    watched_ = to;
    next_done_ = 0;
    if (recording_) {
      for (std::size_t i = from; i < to; ++i) {
        base_->snapshots.push_back(std::move(old_[i]));
        base_->snapshots.back().now += apart;
        move_work(base_->snapshots.back().devices, base_->snapshots.back().done);
      }
    }
    if (next == change_->noticed.end()) {
      finished_ = true;
      last_ = base_->time + apart;
      return false;
    }
    most_ = 0;
    if (to == from + 1) return false;
    if (recording_) {
      go_on_from(base_->snapshots.back(), 0);
    } else {
      go_on_from(old_[to - 1], apart);
    }
    return true;
  }

  // Tasks that run where the look goes on began as much later or sooner as their stretch.
  void note_running() {
    for (const StepDevice& device : s_.devices) {
      if (device.task == kNobody || s_.started[device.task] == s_.look_of_times) continue;
      note_start(device.task, base_->times.start[device.task] + apart_);
    }
  }

  // Of moved tasks that have not begun, from device to device.
  void move_work(std::vector<StepDevice>& devices, std::uint32_t done) const {
    for (const StepChange::Task& moved : change_->moved) {
      if (base_->position[moved.task] < done) continue;
      devices[moved.from].left -= time_with_rest(t_, moved.task, moved.from);
      devices[moved.to].left += time_with_rest(t_, moved.task, moved.to);
    }
  }

  void save() {
    base_->snapshots.push_back(snapshot(t_, s_, now_, done_));
    const StepSnapshot& made = base_->snapshots.back();
    gap_ = std::max(kLeastStep, made.alive() / 2 + made.copied.size() / 16);
  }

  void go_on_from(const StepSnapshot& from, Time apart) {
    now_ = last_ = from.now + apart;
    done_ = from.done;
    dirty_ = 0;
    restore(t_, from, now_, s_);
    if (!recording_) move_work(s_.devices, from.done);
    new_words(from.done);
    if (s_.notes_times) note_running();
    for (const Flight& flight : from.flights) {
      for (const TaskId reader : readers(flight.value)) {
        std::uint32_t& word = word_of(narrow(reader.index()));
        const std::uint32_t where = word % kOneWait;
        if (flight.to == Flight::kAll ? where != flight.from : where == flight.to) word += kOneWait;
      }
    }
  }

  const Tables& t_;
  const StepTables& q_;
  const Instance& instance_;
  StepState& s_;
  const Time limit_, busy_;
  Time now_ = 0, last_ = 0;
  std::size_t done_ = 0;
  std::uint64_t dirty_ = 0;
  bool cut_ = false, finished_ = false;
  // Of looks.
  StepBase* base_ = nullptr;
  const StepChange* change_ = nullptr;
  std::vector<StepSnapshot> old_;  // the base's
  std::size_t watched_ = 0;        // the next of them,
  std::size_t next_done_ = 0;      // and its number of tasks or less
  std::uint32_t behind_ = 0, most_ = 0;
  std::size_t gap_ = kLeastStep;
  Time apart_ = 0;  // from the base, where the run last went on like it
  bool recording_ = false;
};

}  // namespace

StepTime step_time(const Tables& tables, const StepTables& step, std::span<const DeviceId> assignment,
                   StepState& state, Time limit) {
  if (tables.rules.order == Order::kFirstReady) {
    return StepRun<Order::kFirstReady, false>(tables, step, state, limit).evaluate(assignment);
  }
  return StepRun<Order::kPriority, false>(tables, step, state, limit).evaluate(assignment);
}

StepTime changed_step_time(const Tables& tables, const StepTables& step, StepBase& base,
                           const StepChange& change, StepState& state, Time limit, Recording record) {
  if (tables.rules.order == Order::kFirstReady) {
    return StepRun<Order::kFirstReady, true>(tables, step, state, limit).look(base, change, record);
  }
  return StepRun<Order::kPriority, true>(tables, step, state, limit).look(base, change, record);
}

}  // namespace espalier::placement::internal
