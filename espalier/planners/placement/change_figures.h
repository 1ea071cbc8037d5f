#pragma once

// What can be said of a change of an assignment without judging it, as numbers: what a proposal guide looks
// at (proposal_guide.h). Who changes what they mean trains the guide again: espalier learn proposals.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/placement/engine.h"
#include "espalier/planners/placement/moves.h"

namespace espalier::placement {

// All times are parts of the step that the assignment takes. What a change does is small beside a step: such
// figures are square roots, with their sign.
struct ChangeFigures {
  enum Figure : std::size_t {
    kMovedUnits,    // that move, of all
    kMovedWork,     // of their tasks where they stand
    kMoreWork,      // where they go, less that
    kPathWork,      // of their tasks on the critical path
    kPathMoreWork,  // likewise where they go
    kPathQueued,    // of that: of tasks that the next one on the path waits for, because its device is busy
    kPathWaits,     // the longest that a moved task on the path waited for its device
    kPathMessages,  // on the path, that are no longer needed
    kNewPathMessages,  // on the path, that are needed then
    kLate,             // how much too late a moved task would end at least, for the step not to grow
    kReaderLate,       // how much too late a reader of one would start
    kMessages,         // from and to moved tasks, now
    kNewMessages,      // then
    kLeastSlack,       // of a moved task: how much later it might end
    kMeanSlack,
    kBusyThere,  // of the moved work, when the device where it goes is busy
    kBusyHere,
    kFromLoad,  // work of the device that the first moved unit stands on
    kToLoad,    // of the one where it goes
    kToLoadThen,
    kBusiest,  // work of the busiest device
    kBusiestThen,
    kToFilled,  // of the memory where the first unit goes: its peak, and residents that come
    kFromFilled,
    kTooFull,    // whether the assignment does not fit
    kNearThere,  // bytes from and to moved tasks that are where they go, of all
    kNearHere,
    kStart,       // when the first moved task starts
    kEnd,         // when the last one ends
    kPathShare,   // of the step: work on the critical path
    kPathSent,    // of the step: messages on the critical path
    kFewUnits,    // 100 over the movable units, at most 1
    kFewDevices,  // 1 over the devices
    kFirstKind,   // the first of as many as there are kinds: 1 for the change's own
    kCount = kFirstKind + 8
  };
  std::array<float, kCount> values = {};
};

// A step, looked at once for the figures of many changes.
class StepView {
 public:
  // Refers to neighbourhood and engine. O(tasks · log tasks + reads + devices²).
  StepView(const Neighbourhood& around, const Engine& engine, std::span<const DeviceId> at);

  // What the end of the step waited for, first task first (critical_tasks).
  std::span<const TaskId> path() const { return path_; }

  // Of a change from where units stand now, which may have moved since. `kind`: below 8, of guided_accept.
  // O(tasks and edges of what moves), of a value at most its first 32 readers.
  ChangeFigures of(std::span<const DeviceId> at, std::span<const Incremental::Move> change, std::size_t kind);

 private:
  struct TaskTimes {
    double start = 0, end = 0, slack = 0;
    std::int32_t on_path = -1;  // its place
  };
  struct PathStep {
    bool queued = false;  // begins when the one before has left its device, not for what that gives
  };
  struct Sums;
  void find_slack(const Timeline& timeline, std::span<const DeviceId> at);
  double message(std::size_t from, std::size_t to, double bytes) const {
    return from == to ? 0 : latency_[from * devices_ + to] + bytes * a_byte_[from * devices_ + to];
  }
  void add_busy(std::size_t device, double start, double end);
  double busy(std::size_t device, double start, double end) const;  // part of that time
  void add_task(std::span<const DeviceId> at, TaskId task, std::size_t from, std::size_t to,
                Sums& sums) const;
  void add_edge(double bytes, double now, double then, Sums& sums) const;

  const Neighbourhood& around_;
  const Instance& instance_;
  std::size_t devices_;
  double step_ = 1;
  std::vector<TaskId> path_;
  std::vector<PathStep> steps_;  // of the path
  std::vector<TaskTimes> tasks_;
  std::vector<double> latency_, a_byte_;  // devices × devices
  std::vector<double> load_, busy_, filled_;
  bool overfull_ = false;
  double path_work_ = 0, path_sent_ = 0, busiest_ = 0;
  // Of one change.
  static constexpr std::uint32_t kStays = 0xffffffff;
  std::vector<std::uint32_t> goes_to_;  // by unit: where it is sent, or kStays
  std::vector<double> load_then_;
};

}  // namespace espalier::placement
