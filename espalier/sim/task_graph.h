#pragma once

// The one engine. A TaskGraph is flat: each task has a duration, a lane, dependencies and memory deltas.
// Everything that is simulated is compiled to it, by one of two small compilers (from a Schedule; from a
// Placement with a dynamic policy).
//
// A lane is a resource that runs its tasks one at a time, either
//  - in order: exactly in the listed order (a device's compute list, a channel's messages), or
//  - by priority: of the ready tasks the one with the smallest (priority, task number) (a device under a
//    dynamic policy).
// A task that names links (a transfer, a collective) holds all of them for its duration. Of the ready ones
// the engine always takes the smallest (ready time, priority, task number) next: first come, first served. It
// starts at the latest of its ready time and the times at which its links become free. Such a task may stand
// in an in-order lane as well (its channel) or in none, never in one by priority.
// A task that gives way holds its links against its like alone, first come, first served. While another task
// holds one of them it stands still; so it ends when none did for as long as its duration.
// `delay` is latency: successors may start that much after the end. A lane's next task does not wait for it.
//
// At equal times, tasks with links come before the choices of priority lanes, and those go by lane number. So
// the result does not depend on the order in which dependencies are listed.

#include <cstdint>
#include <vector>

#include "espalier/base/units.h"

namespace espalier {

using TaskIndex = std::uint32_t;

enum class LaneOrder : std::uint8_t { kInOrder, kByPriority };

struct TaskGraph {
  struct MemoryDelta {  // applied to `account` when the task starts or ends; kArrival: `delay` after its end
    TaskIndex task = 0;
    enum class When : std::uint8_t { kStart, kEnd, kArrival } when = When::kStart;
    std::uint32_t account = 0;  // device × category
    Bytes bytes;                // may be negative
    friend bool operator==(const MemoryDelta&, const MemoryDelta&) = default;
  };

  static constexpr std::uint32_t kNoLane = 0xffffffff;  // in a flat array, by the million; nowhere else

  std::vector<Duration> duration;              // by task
  std::vector<Duration> delay;                 // by task
  std::vector<std::uint32_t> lane;             // by task: a lane, or kNoLane
  std::vector<std::uint64_t> priority;         // by task: smaller first; plain in-order tasks ignore it
  std::vector<std::uint32_t> link_begin;       // by task, tasks + 1 entries: its links in `links`
  std::vector<std::uint32_t> links;            // each task's links differ from one another
  std::vector<std::uint8_t> gives_way;         // by task, 0 or 1; 1 of tasks with links in no lane
  std::vector<std::uint32_t> successor_begin;  // by task, tasks + 1 entries
  std::vector<TaskIndex> successors;
  std::vector<LaneOrder> lane_order;       // by lane
  std::vector<std::uint32_t> order_begin;  // by lane, lanes + 1 entries: in-order lanes' tasks in `order`
  std::vector<TaskIndex> order;            // every task of an in-order lane, once
  std::uint32_t link_count = 0;
  std::vector<Bytes> initial;       // by account: held from the start
  std::vector<MemoryDelta> memory;  // any order

  std::size_t size() const { return duration.size(); }
  friend bool operator==(const TaskGraph&, const TaskGraph&) = default;
};

struct TaskTimes {
  std::vector<Duration> start;  // by task
  std::vector<Duration> end;    // by task: start + duration, and what it stood still
  std::vector<Duration> ready;  // by task: when its last dependency and the lane task before it allowed it
  Duration makespan;            // the latest end + delay of a task
  friend bool operator==(const TaskTimes&, const TaskTimes&) = default;
};

// Runs all tasks. Throws InternalError naming a cycle's tasks if there is one (schedules are checked before).
// O(edges + links + tasks · log(waiting transfers)) time, and for each task that gives way the logarithm of
// those that it gives way to, each time it does; 28 bytes a task beside the graph, besides queues.
TaskTimes run_tasks(const TaskGraph& graph);

}  // namespace espalier
