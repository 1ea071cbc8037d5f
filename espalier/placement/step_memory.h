#pragma once

// What a device holds at most in a step that step_time.h ran, to the byte. Which values are held when follows
// from the finished times alone (docs/semantics.md, operators one by one, 4): a value from the start of its
// producer, a copy from the start of its message, each to the last end of a reader there, of a value within
// it there, or of a message that leaves with it. So nobody counts while a step runs: the run notes times, and
// only a device that might overflow is counted, its changes sorted by time.
//
// A look notes what it runs. The rest is the base's, so much later or sooner as its stretch.

#include <cstdint>
#include <vector>

#include "espalier/placement/step_snapshot.h"

namespace espalier::placement::internal {

// When everything happens in the step that was looked at last, or ran in full.
class FinishedTimes {
 public:
  // `base` has its times, but for what the state's look noted.
  FinishedTimes(const StepState& state, const StepBase& base) : s_(state), base_(base) {}

  Time start(std::uint32_t task) const {
    return noted(s_.started[task]) ? s_.start[task] : base_.times.start[task] + apart(task);
  }
  Time end(std::uint32_t task) const {
    return noted(s_.ended[task]) ? s_.end[task] : base_.times.end[task] + apart(task);
  }
  // Of a message that the task sends; `read`: the first of its value on the receiver.
  MessageTimes message(std::uint32_t task, std::size_t read) const {
    if (noted(s_.ended[task])) return s_.messages[read];
    const Time more = apart(task);
    const MessageTimes& times = base_.times.messages[read];
    return {times.start + more, times.arrival + more};
  }

 private:
  bool noted(std::uint32_t look) const { return look == s_.look_of_times; }
  Time apart(std::uint32_t task) const {
    const std::uint32_t position = base_.position[task];
    for (std::size_t i = s_.stretches.size(); i-- > 0;) {
      if (position >= s_.stretches[i].from) return s_.stretches[i].apart;
    }
    return 0;
  }
  const StepState& s_;
  const StepBase& base_;
};

// The base has been made what the state's look ran: its times become those.
void take_times(const Tables& tables, const StepState& state, StepBase& base);

class StepMemory {
 public:
  explicit StepMemory(const Tables& tables) : t_(tables) {}

  // The most that the device holds at once, beside residents; `where` are the devices of all tasks. O(tasks +
  // changes of the device · log).
  std::int64_t peak(const FinishedTimes& times, const std::vector<std::uint16_t>& where,
                    std::uint32_t device);

 private:
  struct Change {
    Time time = 0;
    std::int64_t bytes = 0;
  };
  struct Held {
    Time from = 0, until = 0;
  };
  Held held_of(const FinishedTimes& times, const std::vector<std::uint16_t>& where, std::uint32_t value,
               std::uint32_t device) const;
  std::int64_t all_held(const FinishedTimes& times, const std::vector<std::uint16_t>& where,
                        std::uint32_t device);
  void find_values(const std::vector<std::uint16_t>& where, std::uint32_t device);

  const Tables& t_;
  std::vector<std::uint32_t> values_;  // that the device makes or receives, descending
  std::vector<Time> kept_until_;       // by value: for the sake of those within it
  std::vector<char> found_;            // by value
  std::vector<Change> changes_;
};

}  // namespace espalier::placement::internal
