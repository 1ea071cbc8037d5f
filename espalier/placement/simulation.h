#pragma once

// The engine's inside: an instance under rules as flat numbers (Tables), the memory that one evaluation works
// in (State), and the run itself (simulation.cc). Time and bytes are plain integers here.
//
// A run goes from instant to instant. At an instant, in this order:
//   1. tasks that end, by device: their values are sent, those who wait for them nearby are ready;
//   2. messages that begin or arrive;
//   3. every device that is free and has a ready task takes one, by device.
// A task without time ends at the instant at which it began: then 1 to 3 come again.
//
// What a message will do is known when it is sent: links serve whoever came first, so it begins when all its
// links have let go of those before it. Devices and buses are slots, each with the time of its
// next event; messages that no bus puts in order wait in a heap, which is one more slot.

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "espalier/placement/engine.h"

namespace espalier::placement::internal {

using Time = std::int64_t;
inline constexpr Time kNever = std::numeric_limits<Time>::max();

// The slots' next events; the least, and of equals the smallest slot, is found by looking at all of them
// where they are few, else at the root of a tournament tree.
class Slots {
 public:
  void reset(std::size_t slots);
  struct Event {
    Time time;
    std::uint32_t slot;
  };
  Event least() const {
    if (leaves_ != 0) return at_root();
    Event event{time_[0], 0};
    for (std::uint32_t slot = 1; slot < count_; ++slot) {
      const bool less = time_[slot] < event.time;
      event.time = less ? time_[slot] : event.time;
      event.slot = less ? slot : event.slot;
    }
    return event;
  }
  void set(std::size_t slot, Time time) {
    time_[leaves_ + slot] = time;
    if (leaves_ != 0) play(leaves_ + static_cast<std::uint32_t>(slot));
  }

 private:
  Event at_root() const;
  void play(std::uint32_t node);
  std::uint32_t count_ = 0;
  std::uint32_t leaves_ = 0;  // 0: no tree
  std::vector<Time> time_;    // of a tree: a heap's numbering, children of i are 2 i and 2 i + 1
};

// A set of numbers below a bound whose smallest is found in three or four steps: a bit for each, and for each
// word of bits a bit above it.
class RankSet {
 public:
  void reset(std::size_t bound);
  bool empty() const { return levels_.back()[0] == 0; }
  void insert(std::uint32_t rank) {
    for (std::vector<std::uint64_t>& level : levels_) {
      std::uint64_t& word = level[rank / 64];
      const bool was_empty = word == 0;
      word |= std::uint64_t{1} << (rank % 64);
      if (!was_empty) return;
      rank /= 64;
    }
  }
  std::uint32_t pop() {
    std::uint32_t rank = 0;
    for (std::size_t level = levels_.size(); level-- > 0;) {
      rank = 64 * rank + static_cast<std::uint32_t>(__builtin_ctzll(levels_[level][rank]));
    }
    const std::uint32_t result = rank;
    for (std::vector<std::uint64_t>& level : levels_) {
      std::uint64_t& word = level[rank / 64];
      word &= word - 1;  // the smallest
      if (word != 0) break;
      rank /= 64;
    }
    return result;
  }

 private:
  std::vector<std::vector<std::uint64_t>> levels_;  // the lowest first
};

// What a message from one device to another takes.
struct Passage {
  std::uint32_t speed = 0;  // which of Tables::holds
  Time latency = 0;
  std::uint32_t link_begin = 0, link_end = 0;  // in Tables::links
};

// What a run reads of a task, and of a value, together. Lists begin here and end where the next one's begin.
struct TaskRow {
  std::uint32_t reads = 0, produces = 0, copies = 0;  // in the instance's lists
  std::uint32_t unit = 0;
  std::int64_t workspace = 0;
  Time bottom = 0;  // from its start to the end of the step, at least
};
struct ValueRow {
  std::int64_t bytes = 0, own_bytes = 0;
  std::uint32_t producer = 0;
  std::uint32_t within = 0;   // itself: none
  std::uint32_t readers = 0;  // in the instance's list
  bool here_only = false;
};

struct Tables {
  Tables(const Instance& instance, const Rules& rules, DeviceOrders orders);
  void set_orders(DeviceOrders given);

  const Instance& instance;
  Rules rules;
  DeviceOrders orders;
  std::size_t tasks, values, devices, kinds;
  std::vector<std::uint32_t> waits;  // by task: the values that it reads
  std::vector<Time> hold;            // by value and speed, speeds together
  std::size_t speeds = 1;
  std::vector<Passage> passages;  // by pair
  std::vector<LinkIndex> links;   // a sender's bus is a link of its number
  std::size_t link_count = 0;
  bool bus_in_order = false;         // of a sender's messages the first that begins is the first that arrives
  bool endpoints = false;            // some message takes time of a device
  bool equal_ways = true;            // all messages of some bytes take equally long
  std::vector<TaskRow> task_rows;    // by task, and one more
  std::vector<ValueRow> value_rows;  // by value, and one more
  Lists<std::uint32_t> kept_by;      // by value: those within it
  std::vector<std::uint32_t> here_only;  // values
  bool shared = false;                   // some value is within another
  std::vector<std::uint32_t> rank;       // by task, with priorities
  std::vector<std::uint32_t> of_rank;
  std::vector<std::uint32_t> listed_on;  // by task, with lists: the device
  Lists<std::uint32_t> units_with;       // by resident

  const Passage& passage(std::uint32_t from, std::uint32_t to) const { return passages[from * devices + to]; }
  Time hold_of(std::uint32_t value, const Passage& way) const { return hold[value * speeds + way.speed]; }

 private:
  void add_ways();
  void add_rows();
  void add_bottom_levels();
};

struct Sent {  // a message on its way
  static constexpr std::uint32_t kAll = 0xffffffff;
  std::uint32_t value = 0, from = 0;
  std::uint32_t to = 0;  // a device, or kAll
  Time start = 0, arrival = 0;
};

// Messages of one bus, in order.
struct Bus {
  std::vector<Sent> queue;
  std::size_t to_start = 0, to_arrive = 0;
  Time free = 0;
};

// An event of a message in the heap.
struct Pending {
  enum class What : std::uint8_t { kSend, kStart, kArrive };
  Time time;
  std::uint64_t order;  // of those to be sent at one instant: by sender, value, receiver
  What what;
  std::uint32_t message;
  friend bool operator>(const Pending& a, const Pending& b) {
    if (a.time != b.time) return a.time > b.time;
    return a.order != b.order ? a.order > b.order : a.message > b.message;
  }
};

struct DeviceState {
  enum class Phase : std::uint8_t { kFree, kRuns, kBusy } phase = Phase::kFree;
  bool worked = false;              // the task that it runs takes time
  std::uint32_t task = 0;           // that it runs
  std::int64_t held = 0, peak = 0;  // beside residents
  std::int64_t workspace = 0;       // the largest so far, where all values are held all step long
  Time changed = 0;                 // the instant of the last change of `held`
  // Tasks that are ready: a part of State::queue, in order of coming (kFirstReady); of kListed how many of
  // the list ran.
  std::uint32_t begin = 0, end = 0;
  std::uint32_t same = 0;  // where those of `came` begin
  Time came = -1;          // the instant at which the last came
};

struct Snapshot;
struct State;

// How far a run is.
struct Clock {
  Time now = 0, last = 0;  // last: the latest end of a task
  std::size_t done = 0;    // tasks that ended
};

// Who watches a run: nobody. It begins at the beginning, or where `from` was taken.
struct NoRecord {
  const Snapshot* from = nullptr;
  void task(std::uint32_t, Time, Time, std::uint32_t) {}
  void message(const Sent&) {}
  void instant(const Clock&, const Tables&, const State&) {}  // nothing more happens at clock.now
};

// What happened, for timelines.
struct FullRecord {
  const Snapshot* from = nullptr;
  void instant(const Clock&, const Tables&, const State&) {}
  std::vector<Time> start, end;            // by task
  std::vector<std::vector<TaskId>> lists;  // by device
  std::vector<Sent> messages;
  void task(std::uint32_t task, Time begun, Time ended, std::uint32_t device) {
    start[task] = begun;
    end[task] = ended;
    lists[device].emplace_back(task);
  }
  void message(const Sent& sent) { messages.push_back(sent); }
};

// What a run changes.
struct State {
  static constexpr std::uint32_t kEnded = 0xffffffff;
  std::vector<std::uint16_t> device;   // by task
  std::vector<std::uint32_t> waits;    // by task: values that have not come; kEnded
  std::vector<std::uint32_t> waited;   // by task: the same at the beginning
  std::vector<std::int64_t> resident;  // by device: bytes that are held all step
  // By value and device: readers that still need it there, and where it is produced sends that have not
  // ended; kFresh: it came and its receiver has not taken notice.
  std::vector<std::uint32_t> uses;
  std::vector<std::uint32_t> queue;
  std::vector<DeviceState> devices;
  std::vector<RankSet> ready;        // by device, with priorities
  std::vector<char> copied;          // by duplicable operator and device
  std::vector<std::uint32_t> seen;   // by device: the last resident
  std::vector<Time> work;            // by device: of all its tasks, where there is a limit
  std::vector<std::uint64_t> dirty;  // a bit for each device that may take a task
  Slots slots;
  std::vector<Bus> buses;  // by device
  std::vector<Time> link_free;
  std::vector<Sent> messages;
  std::vector<Pending> pending;        // a heap
  std::vector<std::uint32_t> targets;  // of one value
  std::vector<Bytes> peak;             // by device
};

// The state between two instants, without what follows from the assignment, and without what nobody will look
// at again: so it fits any assignment that has led to the same so far.
struct Snapshot {
  Clock clock;
  std::vector<DeviceState> devices;
  std::vector<std::vector<std::uint32_t>> queued;  // by device: ready tasks, first ready first
  std::vector<RankSet> ready;
  std::vector<char> copied;
  Slots slots;
  std::vector<Bus> buses;  // what has not arrived
  std::vector<Time> link_free;
  std::vector<Sent> messages;  // of `pending`, in its order
  std::vector<Pending> pending;
  struct Live {
    std::uint32_t value = 0;
    std::uint32_t uses = 0;  // in `counts`, by device
  };
  std::vector<Live> live;
  std::vector<std::uint32_t> counts;
  struct Came {
    std::uint32_t task = 0;
    std::uint32_t values = 0;  // that it reads and that have come
  };
  std::vector<Came> came;
  std::vector<std::uint32_t> ended;  // tasks
};
Snapshot save(const Tables& tables, const State& state, const Clock& clock);
// The state was placed for an assignment and nothing has run yet.
void restore(const Tables& tables, const Snapshot& snapshot, State& state);

// What incremental looks ask of the evaluation that they start from: ends of tasks, snapshots.
struct BaseRecord {
  const Snapshot* from = nullptr;
  std::vector<Time> end;  // by task
  std::vector<Snapshot> snapshots;
  std::size_t step = 1;  // tasks between two of them
  void task(std::uint32_t task, Time, Time to, std::uint32_t) { end[task] = to; }
  void message(const Sent&) {}
  void instant(const Clock& clock, const Tables& tables, const State& state) {
    const std::size_t before = snapshots.empty() ? 0 : snapshots.back().clock.done;
    if (clock.done >= before + step) snapshots.push_back(save(tables, state, clock));
  }
};

// One evaluation; instantiated for the three records.
template <class Record>
Evaluated simulate(const Tables& tables, std::span<const DeviceId> assignment, State& state, Time limit,
                   Record& record);

}  // namespace espalier::placement::internal
