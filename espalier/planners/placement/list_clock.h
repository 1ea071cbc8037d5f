#pragma once

// The estimated schedule that list methods build up: when what a task reads can be on a device, the earliest
// gap there, and the messages sent so far. An estimate, not the engine: links are taken in the order in which
// messages are asked for, never in a gap before, and endpoint costs delay a message without keeping its
// devices busy.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "espalier/placement/engine.h"
#include "espalier/placement/instance.h"

namespace espalier::placement {

enum class Gaps : std::uint8_t {
  kFilled,  // a task may stand in a gap that was left (of the 64 first ones that it meets)
  kLeft,    // behind all that its device has
};

class ListClock {
 public:
  // Refers to the instance.
  ListClock(const Instance& instance, Rules::Sends sends, Gaps gaps);

  // Where a task would stand on a device. What it reads from tasks that are not set is left out. O(reads ·
  // links + log tasks).
  struct Slot {
    Duration ready;       // all that it reads is there
    Duration start, end;  // of the task, its copies of duplicable operators in front
  };
  Slot slot(TaskId task, DeviceId device) const;

  // Sends what it reads and sets it. Each task once.
  Slot set(TaskId task, DeviceId device);

  // Takes back what was set since, the last first.
  struct Mark {
    std::size_t changes;
  };
  Mark mark();  // from now on changes are remembered, until forget()
  void back_to(Mark mark);
  void forget();

  bool is_set(TaskId task) const { return set_[task.index()]; }
  DeviceId device(TaskId task) const { return device_[task.index()]; }
  Duration start(TaskId task) const { return start_[task.index()]; }
  Duration end(TaskId task) const { return end_[task.index()]; }
  Duration free_from(DeviceId device) const;  // the end of all that it has
  Duration makespan() const;                  // O(devices)

  // The tasks by start, and each device's.
  DeviceOrders orders() const;

 private:
  struct Block {  // a time in which a device is busy without a gap
    Duration start, end;
  };
  struct Change {
    enum class Kind : std::uint8_t { kArrival, kLink, kTask, kCopy, kBlock } kind;
    std::size_t index;               // of the table; of a block: its place
    Duration before = {};            // of an arrival or link
    std::size_t device = 0;          // of a block
    std::vector<Block> blocks = {};  // of a block: those that it replaced, two at most
  };
  // Until when a message of the slot that is looked at would hold a link.
  struct Taken {
    std::size_t link;
    Duration until;
  };
  template <class Visit>
  void for_each_link(DeviceId from, const Route& way, Visit visit) const;
  Duration arrival(ValueId value, DeviceId device) const;
  Duration ready(TaskId task, DeviceId device) const;
  void send(ValueId value, DeviceId device);
  Duration time_of(TaskId task, DeviceId device) const;
  Duration gap(DeviceId device, Duration ready, Duration time) const;
  void occupy(DeviceId device, Duration start, Duration end);
  void remember(Change change) {
    if (remembers_) changes_.push_back(std::move(change));
  }

  const Instance& instance_;
  Rules::Sends sends_;
  Gaps gaps_;
  std::size_t devices_;
  std::vector<Duration> start_, end_;  // by task
  std::vector<DeviceId> device_;
  std::vector<bool> set_;
  std::vector<Duration> arrival_;           // by value and device; max: not sent
  std::vector<Duration> link_free_;         // by link, or by sender
  std::vector<bool> has_copy_;              // by duplicable operator and device
  std::vector<std::vector<Block>> blocks_;  // by device, ascending
  mutable std::vector<Taken> taken_;
  std::vector<Change> changes_;
  bool remembers_ = false;
};

// What tasks and messages take on average, as list methods of heterogeneous devices rank them: over the
// devices where a task may stand, and over all pairs of devices.
struct MeanCosts {
  explicit MeanCosts(const Instance& instance);  // O(tasks · devices + values · different ways)
  std::vector<Duration> time;                    // by task
  std::vector<Duration> message;                 // by value
};

// The time of a message over a way, alone: send, hold, latency, receive.
Duration message_time(const Route& way, Bytes bytes);

}  // namespace espalier::placement
