#include "espalier/planners/placement/change_figures.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/planners/placement/descent.h"

namespace espalier::placement {
namespace {

constexpr std::size_t kMoments = 64;      // into which a step is cut, to see when devices are busy
constexpr std::size_t kMostReaders = 32;  // of a value, that are looked at

// The square root is the same on any machine.
float rooted(double part) {
  return static_cast<float>(part < 0 ? -std::sqrt(-part) : std::sqrt(part));
}

double number_of(Duration time) {
  return static_cast<double>(time.count());
}

double number_of(Bytes bytes) {
  return static_cast<double>(bytes.count());
}

std::size_t moment(double time) {
  return std::min(kMoments - 1, static_cast<std::size_t>(time * kMoments));
}

// How much of a stretch of time is in a moment.
double within(std::size_t moment, double start, double end) {
  constexpr double kLength = 1.0 / kMoments;
  const auto begin = static_cast<double>(moment) * kLength;
  return std::max(0.0, std::min(end, begin + kLength) - std::max(start, begin));
}

}  // namespace

StepView::StepView(const Neighbourhood& around, const Engine& engine, std::span<const DeviceId> at)
    : around_(around),
      instance_(around.instance()),
      devices_(instance_.devices()),
      tasks_(instance_.tasks()),
      latency_(devices_ * devices_),
      a_byte_(devices_ * devices_),
      load_(devices_),
      busy_(devices_ * kMoments),
      filled_(devices_),
      goes_to_(instance_.units(), kStays) {
  const Timeline seen = timeline(engine, at);
  step_ = std::max(1.0, number_of(seen.evaluated.time));
  overfull_ = !seen.evaluated.fits;
  path_ = critical_tasks(instance_, at, seen);
  constexpr std::int64_t kSample = 1'000'000'000;
  for (std::size_t from = 0; from < devices_; ++from) {
    filled_[from] = number_of(seen.peak[from]) / std::max(1.0, number_of(instance_.memory[from]));
    for (std::size_t to = 0; to < devices_; ++to) {
      if (from == to) continue;
      const Route& way = instance_.way(DeviceId(from), DeviceId(to));
      const std::optional<std::int64_t> all = engine.rules().bandwidth;
      const Duration hold = all ? transfer_time(Bytes(kSample), *all) : way.hold(Bytes(kSample));
      latency_[from * devices_ + to] = all ? 0 : number_of(way.latency) / step_;
      a_byte_[from * devices_ + to] = number_of(hold) / kSample / step_;
    }
  }
  for (std::size_t t = 0; t < tasks_.size(); ++t) {
    TaskTimes& task = tasks_[t];
    task.start = number_of(seen.start[t]) / step_;
    task.end = number_of(seen.end[t]) / step_;
    const std::size_t device = at[instance_.unit[t].index()].index();
    load_[device] += task.end - task.start;
    add_busy(device, task.start, task.end);
  }
  busiest_ = *std::max_element(load_.begin(), load_.end());
  find_slack(seen, at);
  steps_.resize(path_.size());
  for (std::size_t i = 0; i < path_.size(); ++i) {
    const TaskId task = path_[i];
    tasks_[task.index()].on_path = static_cast<std::int32_t>(i);
    path_work_ += tasks_[task.index()].end - tasks_[task.index()].start;
    if (i == 0) continue;
    const TaskId before = path_[i - 1];
    const std::span<const ValueId> reads = instance_.reads[task.index()];
    const bool read = std::any_of(reads.begin(), reads.end(),
                                  [&](ValueId value) { return instance_.producer[value.index()] == before; });
    steps_[i].queued = !read;
    const bool sent = at[instance_.unit[before.index()].index()] != at[instance_.unit[task.index()].index()];
    if (sent) path_sent_ += std::max(0.0, tasks_[task.index()].start - tasks_[before.index()].end);
  }
}

void StepView::add_busy(std::size_t device, double start, double end) {
  for (std::size_t m = moment(start); m <= moment(end); ++m)
    busy_[device * kMoments + m] += within(m, start, end) * kMoments;
}

double StepView::busy(std::size_t device, double start, double end) const {
  if (end <= start) return std::min(1.0, busy_[device * kMoments + moment(start)]);
  double sum = 0;
  for (std::size_t m = moment(start); m <= moment(end); ++m)
    sum += within(m, start, end) * std::min(1.0, busy_[device * kMoments + m]);
  return sum / (end - start);
}

// How much later each task may end, if all behind it keeps its order and messages take as long as they did.
void StepView::find_slack(const Timeline& timeline, std::span<const DeviceId> at) {
  constexpr std::uint32_t kNone = 0xffffffff;
  std::vector<std::uint32_t> next(tasks_.size(), kNone);
  for (std::size_t d = 0; d < timeline.lists.size(); ++d) {
    const std::span<const TaskId> list = timeline.lists[d];
    for (std::size_t i = 1; i < list.size(); ++i) next[list[i - 1].index()] = narrow(list[i].index());
  }
  std::vector<std::uint32_t> order(tasks_.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::tuple(timeline.start[a], timeline.end[a], a) >
           std::tuple(timeline.start[b], timeline.end[b], b);
  });
  std::vector<double> arrived(devices_, 0);
  std::vector<std::uint32_t> first(instance_.values(), kNone), other(timeline.messages.size(), kNone);
  for (std::size_t m = 0; m < other.size(); ++m) {
    other[m] = std::exchange(first[timeline.messages[m].value.index()], narrow(m));
  }
  for (const std::uint32_t t : order) {
    TaskTimes& task = tasks_[t];
    double slack = 1 - task.end;
    const DeviceId here = at[instance_.unit[t].index()];
    if (next[t] != kNone) slack = std::min(slack, tasks_[next[t]].slack + tasks_[next[t]].start - task.end);
    for (const ValueId value : instance_.produces[t]) {
      std::fill(arrived.begin(), arrived.end(), task.end);
      for (std::uint32_t m = first[value.index()]; m != kNone; m = other[m]) {
        arrived[timeline.messages[m].to.index()] = number_of(timeline.messages[m].arrival) / step_;
      }
      const bool here_only = !instance_.here_only.empty() && instance_.here_only[value.index()] != 0;
      for (const TaskId reader : instance_.readers[value.index()]) {
        const DeviceId there = at[instance_.unit[reader.index()].index()];
        if (here_only && there != here) continue;
        const TaskTimes& later = tasks_[reader.index()];
        slack = std::min(slack, later.slack + later.start - arrived[there.index()]);
      }
    }
    task.slack = std::max(0.0, slack);
  }
}

struct StepView::Sums {
  double tasks = 0, work = 0, work_then = 0;
  double path_work = 0, path_work_then = 0, path_queued = 0, path_waits = 0, path_messages = 0,
         new_path_messages = 0;
  double late = -1, reader_late = -1;
  double messages = 0, new_messages = 0;
  double least_slack = 1, all_slack = 0;
  double busy_there = 0, busy_here = 0;
  double bytes = 1, near_there = 0, near_here = 0;
  double start = 1, end = 0;
};

void StepView::add_edge(double bytes, double now, double then, Sums& sums) const {
  sums.bytes += bytes;
  sums.messages += now;
  sums.new_messages += then;
}

void StepView::add_task(std::span<const DeviceId> at, TaskId task, std::size_t from, std::size_t to,
                        Sums& sums) const {
  const std::size_t t = task.index();
  const TaskTimes& times = tasks_[t];
  const double now = number_of(instance_.time_on(task, DeviceId(from))) / step_;
  const double then = number_of(instance_.time_on(task, DeviceId(to))) / step_;
  ++sums.tasks;
  sums.work += now;
  sums.work_then += then;
  sums.least_slack = std::min(sums.least_slack, times.slack);
  sums.all_slack += times.slack;
  sums.start = std::min(sums.start, times.start);
  sums.end = std::max(sums.end, times.end);
  sums.busy_there += now * busy(to, times.start, times.end);
  sums.busy_here += now * busy(from, times.start, times.end);
  const std::int32_t place = times.on_path;
  if (place >= 0) {
    sums.path_work += now;
    sums.path_work_then += then;
    const auto i = static_cast<std::size_t>(place);
    if (i + 1 < path_.size() && steps_[i + 1].queued) sums.path_queued += now;
  }
  const auto goes = [&](std::size_t unit) {
    return goes_to_[unit] == kStays ? at[unit].index() : std::size_t{goes_to_[unit]};
  };
  const auto is_path_step = [&](std::size_t first, std::size_t second) {
    const std::int32_t a = tasks_[first].on_path, b = tasks_[second].on_path;
    return a >= 0 && b == a + 1;
  };
  double ready = 0, ready_here = 0;
  for (const ValueId value : instance_.reads[t]) {
    const std::size_t producer = instance_.producer[value.index()].index();
    const std::size_t unit = instance_.unit[producer].index();
    const double bytes = number_of(instance_.bytes[value.index()]);
    const std::size_t there = at[unit].index(), after = goes(unit);
    const double before = message(there, from, bytes), needed = message(after, to, bytes);
    add_edge(bytes, before, needed, sums);
    if (after == to) sums.near_there += bytes;
    if (there == from) sums.near_here += bytes;
    ready = std::max(ready, tasks_[producer].end + needed);
    ready_here = std::max(ready_here, tasks_[producer].end + before);
    if (is_path_step(producer, t)) {
      sums.path_messages += std::max(0.0, before - needed);
      sums.new_path_messages += std::max(0.0, needed - before);
    }
  }
  sums.late = std::max(sums.late, ready + then - times.end - times.slack);
  if (place >= 0) sums.path_waits = std::max(sums.path_waits, times.start - ready_here);
  for (const ValueId value : instance_.produces[t]) {
    const double bytes = number_of(instance_.bytes[value.index()]);
    const bool here_only = !instance_.here_only.empty() && instance_.here_only[value.index()] != 0;
    const std::span<const TaskId> readers = instance_.readers[value.index()];
    for (const TaskId reader : readers.first(std::min(readers.size(), kMostReaders))) {
      const std::size_t unit = instance_.unit[reader.index()].index();
      if (goes_to_[unit] != kStays || here_only) continue;  // its own reads say the same
      const std::size_t there = at[unit].index();
      const double before = message(from, there, bytes), needed = message(to, there, bytes);
      add_edge(bytes, before, needed, sums);
      if (there == to) sums.near_there += bytes;
      if (there == from) sums.near_here += bytes;
      const TaskTimes& later = tasks_[reader.index()];
      sums.reader_late = std::max(sums.reader_late, times.end + needed - later.start - later.slack);
      if (is_path_step(t, reader.index())) {
        sums.path_messages += std::max(0.0, before - needed);
        sums.new_path_messages += std::max(0.0, needed - before);
      }
    }
  }
}

ChangeFigures StepView::of(std::span<const DeviceId> at, std::span<const Incremental::Move> change,
                           std::size_t kind) {
  ESP_CHECK(!change.empty() && ChangeFigures::kFirstKind + kind < ChangeFigures::kCount, kind);
  using F = ChangeFigures;
  const std::size_t from = at[change.front().unit.index()].index(), to = change.front().device.index();
  for (const Incremental::Move& move : change) goes_to_[move.unit.index()] = narrow(move.device.index());
  Sums sums;
  load_then_ = load_;
  double come = 0;
  for (const Incremental::Move& move : change) {
    const std::size_t here = at[move.unit.index()].index(), there = move.device.index();
    const double work = sums.work, then = sums.work_then;
    for (const TaskId task : instance_.tasks_of[move.unit.index()]) add_task(at, task, here, there, sums);
    load_then_[here] -= sums.work - work;
    load_then_[there] += sums.work_then - then;
    if (there != to) continue;
    for (const std::uint32_t held : instance_.resident[move.unit.index()])
      come += number_of(instance_.resident_bytes[held]);
  }
  for (const Incremental::Move& move : change) goes_to_[move.unit.index()] = kStays;
  const double tasks = std::max(1.0, sums.tasks), work = std::max(1e-12, sums.work);
  F made;
  const auto put = [&](F::Figure figure, double value) { made.values[figure] = static_cast<float>(value); };
  const auto put_rooted = [&](F::Figure figure, double value) { made.values[figure] = rooted(value); };
  put_rooted(F::kMovedUnits, static_cast<double>(change.size()) / static_cast<double>(instance_.units()));
  put_rooted(F::kMovedWork, sums.work);
  put_rooted(F::kMoreWork, sums.work_then - sums.work);
  put_rooted(F::kPathWork, sums.path_work);
  put_rooted(F::kPathMoreWork, sums.path_work_then - sums.path_work);
  put_rooted(F::kPathQueued, sums.path_queued);
  put_rooted(F::kPathWaits, sums.path_waits);
  put_rooted(F::kPathMessages, std::min(1.0, sums.path_messages));
  put_rooted(F::kNewPathMessages, std::min(1.0, sums.new_path_messages));
  put_rooted(F::kLate, std::clamp(sums.late, -1.0, 1.0));
  put_rooted(F::kReaderLate, std::clamp(sums.reader_late, -1.0, 1.0));
  put_rooted(F::kMessages, std::min(4.0, sums.messages));
  put_rooted(F::kNewMessages, std::min(4.0, sums.new_messages));
  put_rooted(F::kLeastSlack, sums.least_slack);
  put_rooted(F::kMeanSlack, sums.all_slack / tasks);
  put(F::kBusyThere, sums.busy_there / work);
  put(F::kBusyHere, sums.busy_here / work);
  put(F::kFromLoad, load_[from]);
  put(F::kToLoad, load_[to]);
  put(F::kToLoadThen, load_then_[to]);
  put(F::kBusiest, busiest_);
  put(F::kBusiestThen, *std::max_element(load_then_.begin(), load_then_.end()));
  put(F::kToFilled, std::min(2.0, filled_[to] + come / std::max(1.0, number_of(instance_.memory[to]))));
  put(F::kFromFilled, std::min(2.0, filled_[from]));
  put(F::kTooFull, overfull_ ? 1 : 0);
  put(F::kNearThere, sums.near_there / sums.bytes);
  put(F::kNearHere, sums.near_here / sums.bytes);
  put(F::kStart, sums.start);
  put(F::kEnd, sums.end);
  put(F::kPathShare, path_work_);
  put(F::kPathSent, path_sent_);
  put(F::kFewUnits, std::min(1.0, 100 / static_cast<double>(around_.movable().size())));
  put(F::kFewDevices, 1 / static_cast<double>(devices_));
  made.values[F::kFirstKind + kind] = 1;
  return made;
}

}  // namespace espalier::placement
