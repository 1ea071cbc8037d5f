#pragma once

// The one engine. A TaskGraph is flat: each task has a duration, a lane, dependencies and memory deltas.
// Everything that is simulated is compiled to it, by one of two small compilers (from a Schedule; from a
// Placement with a dynamic policy).
//
// A lane is a resource that runs its tasks one at a time, either
//  - in order: exactly in the listed order (a device's compute list), or
//  - by priority: of the ready tasks the one with the smallest (priority, task number) (a device under a
//  dynamic policy).
// A transfer or collective runs on no lane but holds links: it is served first come, first served in the
// global order of (ready time, priority, task number): it starts at the latest of its ready time and the
// times at which its links become free, and holds all of them for its duration. `delay` is latency:
// successors may start that much after the end. The order is total, so results do not depend on the order of
// dependencies or threads.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "espalier/base/units.h"

namespace espalier {

using TaskIndex = std::uint32_t;

enum class LaneOrder : std::uint8_t { kInOrder, kByPriority };

struct TaskGraph {
  struct MemoryDelta {  // applied to `account` when the task starts or ends
    TaskIndex task = 0;
    enum class When : std::uint8_t { kStart, kEnd } when = When::kStart;
    std::uint32_t account = 0;  // device × category
    Bytes bytes;                // may be negative
    friend bool operator==(const MemoryDelta&, const MemoryDelta&) = default;
  };

  static constexpr std::uint32_t kNoLane = 0xffffffff;  // in a flat array, by the million; nowhere else

  std::vector<Duration> duration;         // by task
  std::vector<Duration> delay;            // by task
  std::vector<std::uint32_t> lane;        // by task: a lane, or kNoLane
  std::vector<std::uint64_t> priority;    // by task: smaller first; in-order lanes ignore it
  std::vector<std::uint32_t> link_begin;  // by task, tasks + 1 entries: its links in `links`
  std::vector<std::uint32_t> links;
  std::vector<std::uint32_t> successor_begin;  // by task, tasks + 1 entries
  std::vector<TaskIndex> successors;
  std::vector<LaneOrder> lane_order;  // by lane
  std::vector<std::uint32_t>
      order_begin;  // by lane, lanes + 1 entries: in-order lanes' task lists in `order`
  std::vector<TaskIndex> order;
  std::uint32_t link_count = 0;
  std::vector<MemoryDelta> memory;  // any order
  std::uint32_t accounts = 0;

  std::size_t size() const { return duration.size(); }
  friend bool operator==(const TaskGraph&, const TaskGraph&) = default;
};

struct TaskTimes {
  std::vector<Duration> start;  // by task
  std::vector<Duration> ready;  // by task: when its last dependency (and lane predecessor) allowed it
  Duration makespan;            // the latest end + delay of a task; for steps, delays end in an update
};

// Runs all tasks. Throws InternalError naming a task if the graph has a cycle (schedules are checked before).
// O(tasks · log(links + lanes)
// + edges) time; memory stated by bench/simulator.
TaskTimes run_tasks(const TaskGraph& graph);

}  // namespace espalier
