#include "espalier/placement/message_uses.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "espalier/base/check.h"

namespace espalier::placement {
namespace {

class MessageUseFinder {
 public:
  MessageUseFinder(const Instance& instance, std::span<const DeviceId> assignment, const Timeline& line)
      : i_(instance), assignment_(assignment), line_(line), cause_(instance.tasks()) {}

  std::vector<MessageUse> run() {
    for (std::size_t m = 0; m < line_.messages.size(); ++m) {
      uses_.push_back({first_reader(line_.messages[m]), {}, false});
      came_.emplace(std::pair(line_.messages[m].value, line_.messages[m].to), m);
    }
    for (std::size_t d = 0; d < i_.devices(); ++d) find_waits(DeviceId(d));
    mark_critical();
    return std::move(uses_);
  }

 private:
  struct Cause {
    std::optional<std::size_t> message;  // that the device waited for
    std::optional<TaskId> before;        // on the device
  };

  DeviceId device(TaskId task) const { return assignment_[i_.unit[task.index()].index()]; }

  TaskId first_reader(const Timeline::Message& message) const {
    std::optional<TaskId> first;
    for (const TaskId reader : i_.readers[message.value.index()]) {
      if (device(reader) != message.to) continue;
      if (!first || line_.start[reader.index()] < line_.start[first->index()]) first = reader;
    }
    ESP_CHECK(first.has_value(), message.value, message.to);
    return *first;
  }

  // The last to arrive of all that the task reads, of equals the first.
  std::optional<std::size_t> last_arrival(TaskId task) const {
    std::optional<std::size_t> last;
    for (const ValueId value : i_.reads[task.index()]) {
      const auto at = came_.find({value, device(task)});
      if (at == came_.end()) continue;
      if (!last || line_.messages[at->second].arrival > line_.messages[*last].arrival) last = at->second;
    }
    return last;
  }

  void find_waits(DeviceId device) {
    Duration free;
    std::optional<TaskId> before;
    for (const TaskId task : line_.lists[device.index()]) {
      Cause& cause = cause_[task.index()];
      cause.before = before;
      if (line_.start[task.index()] > free) {
        const std::optional<std::size_t> last = last_arrival(task);
        if (last && line_.messages[*last].arrival > free) {
          cause.message = last;
          uses_[*last].waited = line_.messages[*last].arrival - free;
        }
      }
      free = line_.end[task.index()];
      before = task;
    }
  }

  void mark_critical() {
    std::optional<TaskId> at;
    for (std::size_t t = 0; t < i_.tasks(); ++t) {
      if (!at || line_.end[t] > line_.end[at->index()]) at = TaskId(t);
    }
    while (at) {
      const Cause& cause = cause_[at->index()];
      if (cause.message) {
        uses_[*cause.message].critical = true;
        at = i_.producer[line_.messages[*cause.message].value.index()];
      } else {
        at = cause.before;
      }
    }
  }

  const Instance& i_;
  std::span<const DeviceId> assignment_;
  const Timeline& line_;
  std::vector<MessageUse> uses_;
  std::vector<Cause> cause_;  // by task: why it did not begin before
  std::map<std::pair<ValueId, DeviceId>, std::size_t> came_;
};

}  // namespace

std::vector<MessageUse> message_uses(const Instance& instance, std::span<const DeviceId> assignment,
                                     const Timeline& timeline) {
  return MessageUseFinder(instance, assignment, timeline).run();
}

}  // namespace espalier::placement
