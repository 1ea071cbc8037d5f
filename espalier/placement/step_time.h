#pragma once

// The time of a step alone, without memory: what most evaluations and looks ask, where no device can
// overflow. The rules are those of simulation.h; what its run does for memory alone is left out here: counts
// of who still needs what, and the instants at which messages begin.
//
// No device overflows where it could hold all that it ever holds at once: what its tasks give, copies that
// come, residents, and the largest workspace of all. Else the run of simulation.h decides, or for looks the
// finished times (step_memory.h).
//
// First ready first: nobody overtakes, so a device that rests has its next task decided when the instant is
// over at which that task became the first of its queue. Resting then needs no event of its own.
//
// A look runs only where the step differs. The base is the assignment's own step: the order in which tasks
// end and snapshots between instants, with times relative to them. A run that has the same tasks behind it,
// the same tasks running and ready, and the same messages on their way, all a constant time later or sooner,
// goes on like the base from there: up to the next end of a task whose values the moved tasks read.
//
//   base  ├──┼──┼──┼──┼──┼──┼──┼──┼──┼──┼──┼──┤      x: a value that a moved task reads is given
//               x                 x
//   look        ├──────┤ equal, later by d
//                               ├────┤ equal, later by e: the step is the base's plus e
//
// Two runs have the same tasks behind them where n have ended and none of them is beyond the base's first n.

#include <cstdint>
#include <span>
#include <vector>

#include "espalier/placement/simulation.h"
#include "espalier/placement/step_end.h"

namespace espalier::placement::internal {

// The least of some times, and whose it is; of equals the smallest slot's. A time and its slot are one
// number.
class NextEvents {
 public:
  static constexpr int kSlotBits = 7;
  static constexpr Time kMostTime = Time{1} << (62 - kSlotBits);
  void reset(std::size_t slots);
  std::int64_t least() const {
    if (leaves_ != 0) return keys_[1];
    std::int64_t a = keys_[0], b = keys_[1];
    for (std::uint32_t i = 2; i < count_; i += 2) {  // an even number of them
      a = keys_[i] < a ? keys_[i] : a;
      b = keys_[i + 1] < b ? keys_[i + 1] : b;
    }
    return a < b ? a : b;
  }
  static Time time_of(std::int64_t key) { return key >> kSlotBits; }
  static std::uint32_t slot_of(std::int64_t key) {
    return static_cast<std::uint32_t>(key & ((1 << kSlotBits) - 1));
  }
  void set(std::uint32_t slot, Time time) {
    keys_[leaves_ + slot] = (time << kSlotBits) | slot;
    if (leaves_ != 0) play(leaves_ + slot);
  }
  void clear(std::uint32_t slot) {
    keys_[leaves_ + slot] = kNever;
    if (leaves_ != 0) play(leaves_ + slot);
  }

 private:
  void play(std::uint32_t node);
  std::uint32_t count_ = 0, leaves_ = 0;
  std::vector<std::int64_t> keys_;
};

// What such runs read beside Tables.
struct StepTables {
  static constexpr std::uint32_t kOneWait = 1U << 16;
  explicit StepTables(const Tables& tables);

  bool usable = false;                    // rules and instance are of those that are run here
  std::vector<std::uint32_t> out_begin;   // by task, and one more: in `outs`
  std::vector<std::uint32_t> outs;        // readers of all that a task gives
  std::vector<std::uint32_t> in_begin;    // by task, and one more: in `ins`
  std::vector<std::uint32_t> ins;         // who gives what a task reads, once for each value
  Lists<std::uint32_t> order_ins;         // by task: the same of orders that hold on one device
  std::vector<std::uint32_t> wait_words;  // by task: what it reads, in the upper half
  std::vector<std::uint32_t> sources;     // tasks that read nothing, but orders that hold on one device
  std::vector<std::int64_t> unit_bytes;   // what its tasks give
  std::int64_t most_workspace = 0;
};

struct Flight {  // a message on its way
  Time arrival = 0;
  std::uint32_t value = 0;
  std::uint16_t from = 0, to = 0;
  static constexpr std::uint16_t kAll = 0xffff;
  friend bool operator==(const Flight&, const Flight&) = default;
};

struct StepDevice {
  static constexpr std::uint32_t kNone = 0xffffffff;
  Time free = 0;                             // where nothing runs: rests until then; else when that ends
  std::uint32_t task = kNone;                // that runs, or will when the rest is over
  bool worked = false;                       // that task takes time
  std::uint32_t head = kNone, tail = kNone;  // of the ready ones, where first comes first
  std::uint32_t before = kNone;              // the last that came before `came`
  Time came = -1;
  Time left = 0;  // tasks that have not begun, with rests
};

struct StepBus {
  std::vector<Flight> queue;
  std::size_t head = 0;
  Time free = 0;
};

struct MessageTimes {
  Time start = 0, arrival = 0;
};

struct StepState {
  std::vector<std::uint32_t> word;   // by task: values that have not come, and its device
  std::vector<std::uint32_t> stamp;  // by task: of a look that knows its word
  std::vector<std::uint32_t> next;   // by task: in its device's queue
  std::vector<std::uint32_t> came;   // ready by the end of one task
  std::vector<StepDevice> devices;
  std::vector<RankSet> ready;
  std::vector<std::vector<std::uint32_t>> ranks;  // by device: a heap, for looks
  std::vector<StepBus> buses;
  std::vector<Flight> flights;  // a heap by arrival
  std::vector<Time> link_free;
  std::vector<char> copied;
  std::vector<std::int64_t> held;  // by device: at most
  std::vector<std::uint32_t> seen;
  NextEvents events, bus_events;
  std::uint32_t look = 0;
  // Times, where they are noted: of what this run, or this look, ran itself. (step_memory.h)
  bool notes_times = false;
  std::uint32_t look_of_times = 0;
  std::vector<Time> start, end;               // by task,
  std::vector<std::uint32_t> started, ended;  // by task: the look that noted them
  std::vector<MessageTimes> messages;         // by read of a value: of its device's first
  struct Stretch {
    std::uint32_t from = 0;  // position in the base
    Time apart = 0;
  };
  std::vector<Stretch> stretches;  // that a look left out, ascending
  std::vector<std::uint32_t> scratch;
  std::vector<Flight> scratch_flights;

  void begin_times(const Tables& tables);
  void clear(const Tables& tables);  // nothing runs, nothing is on its way; `ready` and `ranks` stay
  void note_bus(const Tables& tables, std::uint32_t from) {  // its next arrival may be another one
    const StepBus& bus = buses[from];
    if (bus.head == bus.queue.size()) {
      bus_events.clear(from);
    } else {
      bus_events.set(from, bus.queue[bus.head].arrival);
    }
    const std::int64_t key = bus_events.least();
    if (key == kNever) {
      events.clear(narrow(tables.devices));
    } else {
      events.set(narrow(tables.devices), NextEvents::time_of(key));
    }
  }
};

// What the task takes of the device, but for copies that it is first to need.
inline Time time_with_rest(const Tables& t, std::uint32_t task, std::uint32_t device) {
  const Time work = t.instance.time[task * t.kinds + t.instance.kind[device].index()].count();
  return work + (work > 0 ? t.rules.busy_after.count() : 0);
}

struct StepBase;  // step_snapshot.h
struct StepChange;

struct StepTime {
  bool cut_off = false;
  Time time = 0;
};

// Whether no device can overflow that holds so much at most.
bool holds_all(const Instance& instance, std::span<const std::int64_t> held);

// One evaluation; StepState::held has what each device holds at most.
StepTime step_time(const Tables& tables, const StepTables& step, std::span<const DeviceId> assignment,
                   StepState& state, Time limit);

// The step after a change. With `record` the base becomes that step; it must not be cut off.
enum class Recording : std::uint8_t { kNo, kYes };
StepTime changed_step_time(const Tables& tables, const StepTables& step, StepBase& base,
                           const StepChange& change, StepState& state, Time limit, Recording record);

}  // namespace espalier::placement::internal

namespace espalier::placement {

struct Scratch::State : internal::State {
  internal::StepState step;
  std::uint32_t short_for = 0;  // evaluations that need their memory counted
  TrainedCopies copies;
};

struct Engine::Prepared : internal::Tables {
  template <class... Arguments>
  explicit Prepared(Arguments&&... arguments)
      : Tables(std::forward<Arguments>(arguments)...),
        step(static_cast<const Tables&>(*this)),
        end(instance) {}
  internal::StepTables step;
  StepEnd end;
};

}  // namespace espalier::placement
