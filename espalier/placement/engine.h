#pragma once

// How long a step takes with each unit on its device, operator by operator: the simulator of the placement
// literature, flat and without allocation. (Fragments, plan/fragments.h, are what the runtime executes: there
// a message leaves when its fragment has ended, here when its operator has.)
//
// A task is ready when all that it reads has arrived. A device runs one task at a time, to its end. A value
// that is needed elsewhere is sent when its producer has ended; what a message takes, holds and waits for,
// and which ready task a device takes next, the rules say.
//
// Ties end with numbers, never with the order of calls: at one instant ends of tasks come before ends of
// messages, each by device and number, then devices choose by number. So an evaluation is a function of
// instance, rules and assignment, on any machine.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "espalier/base/thread_pool.h"
#include "espalier/placement/instance.h"

namespace espalier::placement {

struct Rules {
  // Which ready task a device takes.
  enum class Order : std::uint8_t {
    kFirstReady,  // the one that was ready first, then the smallest number (Placeto's FIFO)
    kPriority,    // the one of the smallest priority, then the smallest number
    kListed,      // exactly the device's list; lists that wait in a circle are a deadlock
  } order = Order::kPriority;

  // What messages wait for.
  enum class Sends : std::uint8_t {
    kRoutes,     // the links of the way, all at once: first come, first served (docs/semantics.md, links)
    kSenderBus,  // the sender's one outgoing bus (Placeto)
    kUnlimited,  // nothing: classic list scheduling (HEFT)
  } sends = Sends::kRoutes;

  // A value that several devices need.
  enum class Copies : std::uint8_t {
    kOneEach,    // one message to each device
    kOneForAll,  // one message, at whose end all of them have it (Placeto); over the slowest way among them
  } copies = Copies::kOneEach;

  Duration busy_after = {};      // a device stays busy after a task that takes time (Placeto: 5.7 µs)
  Duration bus_busy_after = {};  // a link or bus stays held after a message (Placeto: 25 µs)
  std::optional<std::int64_t> bandwidth = {};  // of every way, in place of its own, latency and endpoints 0

  // What counts as held, beside residents.
  enum class Memory : std::uint8_t {
    kLive,     // a value from its producer's start to its last use there and the end of its sends; a
               // received copy from the start of its message to its last reader's end; workspaces
    kAllHeld,  // every value all step long, where it is produced and where it is received (Baechi)
  } memory = Memory::kLive;

  friend bool operator==(const Rules&, const Rules&) = default;
};

// The simulator of Placeto (NeurIPS'19) as public code has it: first ready first, one bus, one message for
// all, 7,600 bytes a microsecond, 5.7 µs after a task, 25 µs after a message.
Rules placeto_rules();

// What a device's order is made of, where the rules ask for it.
struct DeviceOrders {
  std::vector<std::uint32_t> priority = {};  // by task, smaller first; empty: the task's number
  Lists<TaskId> lists = {};                  // by device
};

struct Evaluated {
  Duration time = {};     // of the step: the end of the last task, and what comes behind it (step_end.h)
  bool fits = true;       // no device needs more than it has
  Bytes lack = {};        // what the devices lack together
  bool deadlock = false;  // of listed orders; then nothing else counts
  bool cut_off = false;   // the step takes at least the limit that was given; then nothing else counts
  friend bool operator==(const Evaluated&, const Evaluated&) = default;
};

class Engine;
struct Timeline;

// Memory that evaluations work in: one for each thread, made once, reused for any number of them.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(Scratch&&) noexcept;

 private:
  friend class Engine;
  friend class Incremental;
  friend Timeline timeline(const Engine& engine, std::span<const DeviceId> assignment);
  struct State;
  std::unique_ptr<State> state_;
};

class Engine {
 public:
  // Refers to the instance. Orders are copied; they must name each task once where the rules use them.
  // O(instance).
  Engine(const Instance& instance, const Rules& rules, DeviceOrders orders = {});
  // The same instance and rules with other orders: a copy of what was prepared. O(instance), without the work
  // that preparing takes.
  Engine(const Engine& other, DeviceOrders orders);
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  const Instance& instance() const;
  const Rules& rules() const;

  // Each unit must stand where it is allowed; with listed orders where it is listed. O(tasks + reads + values
  // · devices + messages · (their readers + log messages)), no allocation once the scratch has grown.
  // Where no device can overflow, whatever it ever holds, memory is not counted event by event, which takes
  // half the time. `limit`: ends as soon as it is certain that the step takes that long or longer.
  Evaluated evaluate(std::span<const DeviceId> assignment, Scratch& scratch,
                     Duration limit = Duration::max()) const;

  // Of many, on all threads of the pool (none: the caller's). The same results for any number of threads.
  std::vector<Evaluated> evaluate_all(std::span<const Assignment> assignments, ThreadPool* pool) const;

 private:
  friend class Incremental;
  friend Timeline timeline(const Engine& engine, std::span<const DeviceId> assignment);
  Evaluated evaluate_tasks(std::span<const DeviceId> assignment, Scratch& scratch, Duration limit) const;
  struct Prepared;
  std::unique_ptr<Prepared> prepared_;
};

// What happened in an evaluation, for pictures, lists and checkers.
struct Timeline {
  struct Message {
    ValueId value;
    DeviceId from, to;
    Duration start, arrival;
    friend bool operator==(const Message&, const Message&) = default;
  };
  std::vector<Duration> start, end;  // by task
  std::vector<Message> messages;     // by start, then value, then device
  Lists<TaskId> lists;               // by device: what it ran, in order
  std::vector<Bytes> peak;           // by device
  Duration ending;                   // sums of gradients and updates behind the last task (step_end.h)
  Evaluated evaluated;
};
Timeline timeline(const Engine& engine, std::span<const DeviceId> assignment);

// The rules that a timeline must keep, worked out again from the instance: one line for each violation.
std::vector<std::string> check_timeline(const Instance& instance, const Rules& rules,
                                        std::span<const DeviceId> assignment, const Timeline& timeline);

// An assignment that changes step by step, judged exactly: what a local search holds. A move is looked at
// where the step differs from the assignment's own: from the last snapshot before the first moment that it
// can change to the first at which all is the same again, only later or sooner (step_time.h), and left as
// soon as the step is known to take too long. A device that may overflow is counted from the finished times:
// O(tasks + its changes · log) more (step_memory.h). Where messages cost time of devices, what comes after
// the first change is run to the end (incremental.cc). Listed orders are evaluated in full each time. Memory:
// snapshots of what is alive, together some times the tasks. Refers to the engine; for one thread at a time.
class Incremental {
 public:
  Incremental(const Engine& engine, Assignment start);
  ~Incremental();

  const Assignment& assignment() const;
  const Evaluated& evaluated() const;

  struct Move {
    UnitId unit;
    DeviceId device;
  };
  // What the step would be: equal to Engine::evaluate of the changed assignment, or `cut_off` exactly where
  // that takes `limit` or longer. The assignment stays as it is until take(). Of several moves of one unit
  // the last counts.
  Evaluated look(std::span<const Move> moves, Duration limit = Duration::max());
  // Makes the last looked-at change the assignment. It must not have been cut off.
  void take();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace espalier::placement
