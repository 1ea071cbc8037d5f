#include "espalier/planners/placement/heft.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "espalier/planners/placement/list_state.h"
#include "espalier/planners/placement/ranks.h"

// symbol of the papers    name here
//   w̄_i, c̄_ij              MeanCosts::time, message
//   rank_u, rank_d         upward_ranks, downward_ranks
//   EST, EFT               Slot::start, end
//   OCT(t, p), rank_oct    optimistic_costs, their mean
//   CP                     critical_path_of
//
// How we deviate:
// - tasks of a unit stand together: the first decides, and no message is counted between them in ranks;
// - a device without room for a unit is no choice (ListState); what fits nowhere is repaired in the end;
// - messages take the links of their way in turn, so a start can lie behind the paper's;
// - means are whole nanoseconds, rounded down; ties go to the smaller number of task, then of device;
// - several first or last tasks are taken as they are: no empty task is put before or behind them.
//
// Bad cases: many readers whose messages share a link look free to ranks, which know no contention; a unit
// whose first task is small and early ends up where that one ends first.

namespace espalier::placement {
namespace {

constexpr std::size_t kReadersLookedAt = 16;

// The tasks of a longest way, from the one of the largest rank on; of equals the smaller number.
std::vector<TaskId> critical_path_of(const Instance& instance, const MeanCosts& mean,
                                     std::span<const Duration> upward) {
  std::vector<TaskId> path;
  if (upward.empty()) return path;
  path.push_back(by_rank(upward).front());
  while (true) {
    const std::size_t task = path.back().index();
    std::optional<std::pair<Duration, TaskId>> next;
    for (const ValueId value : instance.produces[task]) {
      for (const TaskId reader : instance.readers[value.index()]) {
        const bool together = instance.unit[reader.index()] == instance.unit[task];
        const Duration length =
            upward[reader.index()] + (together ? Duration() : mean.message[value.index()]);
        if (!next || next->first < length || (next->first == length && reader < next->second)) {
          next = {length, reader};
        }
      }
    }
    if (!next) return path;
    path.push_back(next->second);
  }
}

// The devices by the time that these tasks take there, those first where all of them may stand.
std::vector<DeviceId> fastest_for(const Instance& instance, std::span<const TaskId> tasks) {
  std::vector<std::tuple<std::size_t, Duration, DeviceId>> devices;
  for (std::size_t d = 0; d < instance.devices(); ++d) {
    Duration sum;
    std::size_t barred = 0;
    for (const TaskId task : tasks) {
      const std::span<const DeviceId> allowed = instance.allowed[instance.unit[task.index()].index()];
      const bool may = std::binary_search(allowed.begin(), allowed.end(), DeviceId(d));
      barred += may ? 0 : 1;
      if (may) sum += instance.time_on(task, DeviceId(d));
    }
    devices.emplace_back(barred, sum, DeviceId(d));
  }
  std::sort(devices.begin(), devices.end());
  std::vector<DeviceId> result;
  for (const auto& each : devices) result.push_back(std::get<2>(each));
  return result;
}

bool is_one_of(std::span<const DeviceId> devices, DeviceId device) {
  return std::find(devices.begin(), devices.end(), device) != devices.end();
}

// When the last of a task's readers would end, each where it ends first, once the task has been set. Readers
// wait for those of their producers that are set already. What was set is taken back.
Duration end_of_readers(ListState& state, TaskId task, std::span<const Duration> rank) {
  const Instance& instance = state.instance();
  std::vector<TaskId> readers;
  for (const ValueId value : instance.produces[task.index()]) {
    const std::span<const TaskId> of = instance.readers[value.index()];
    readers.insert(readers.end(), of.begin(), of.end());
  }
  std::sort(readers.begin(), readers.end(), [&](TaskId a, TaskId b) {
    return std::tuple(-rank[a.index()], a) < std::tuple(-rank[b.index()], b);
  });
  readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
  if (readers.size() > kReadersLookedAt) readers.resize(kReadersLookedAt);
  const ListClock::Mark mark = state.clock().mark();
  Duration last = state.clock().end(task);
  for (const TaskId reader : readers) {
    const bool together = instance.unit[reader.index()] == instance.unit[task.index()];
    const DeviceId device = together ? state.clock().device(task) : state.where_it_ends_first(reader);
    last = std::max(last, state.clock().set(reader, device).end);
  }
  state.clock().back_to(mark);
  return last;
}

}  // namespace

Placed heft(const Instance& instance, const ListOptions& options) {
  ListState state(instance, options.sends, Gaps::kFilled);
  for (const TaskId task : by_rank(upward_ranks(instance, MeanCosts(instance)))) {
    state.put(task, state.where_it_ends_first(task));
  }
  return state.finish();
}

Placed cpop(const Instance& instance, const ListOptions& options) {
  const MeanCosts mean(instance);
  const std::vector<Duration> up = upward_ranks(instance, mean);
  std::vector<Duration> through = downward_ranks(instance, mean);
  for (std::size_t t = 0; t < through.size(); ++t) through[t] += up[t];
  std::vector<bool> critical(instance.tasks());
  const std::vector<TaskId> path = critical_path_of(instance, mean, up);
  for (const TaskId task : path) critical[task.index()] = true;
  const DeviceId fastest = fastest_for(instance, path).front();
  ListState state(instance, options.sends, Gaps::kFilled);
  for_each_ready(instance, priorities_by(through), [&](TaskId task) {
    const bool there = critical[task.index()] && is_one_of(state.choices(task), fastest);
    state.put(task, there ? fastest : state.where_it_ends_first(task));
  });
  return state.finish();
}

std::vector<Duration> optimistic_costs(const Instance& instance) {
  const MeanCosts mean(instance);
  const std::size_t devices = instance.devices();
  std::vector<Duration> table(instance.tasks() * devices);
  for (std::size_t t = instance.tasks(); t-- > 0;) {
    const std::span<const DeviceId> allowed = instance.allowed[instance.unit[t].index()];
    for (const ValueId value : instance.produces[t]) {
      for (const TaskId reader : instance.readers[value.index()]) {
        const UnitId unit = instance.unit[reader.index()];
        const auto rest = [&](DeviceId device) {
          return table[reader.index() * devices + device.index()] + instance.time_on(reader, device);
        };
        Duration least = Duration::max();
        for (const DeviceId device : instance.allowed[unit.index()]) least = std::min(least, rest(device));
        least += mean.message[value.index()];
        for (const DeviceId device : allowed) {
          const std::span<const DeviceId> may = instance.allowed[unit.index()];
          Duration best = least;
          if (unit == instance.unit[t]) best = rest(device);
          if (std::binary_search(may.begin(), may.end(), device)) best = std::min(best, rest(device));
          Duration& entry = table[t * devices + device.index()];
          entry = std::max(entry, best);
        }
      }
    }
  }
  return table;
}

Placed peft(const Instance& instance, const ListOptions& options) {
  const std::vector<Duration> table = optimistic_costs(instance);
  std::vector<Duration> rank(instance.tasks());
  for (std::size_t t = 0; t < instance.tasks(); ++t) {
    const std::span<const DeviceId> allowed = instance.allowed[instance.unit[t].index()];
    for (const DeviceId device : allowed) rank[t] += table[t * instance.devices() + device.index()];
    rank[t] = rank[t] / static_cast<std::int64_t>(allowed.size());
  }
  ListState state(instance, options.sends, Gaps::kFilled);
  for_each_ready(instance, priorities_by(rank), [&](TaskId task) {
    std::optional<std::pair<Duration, DeviceId>> best;
    for (const DeviceId device : state.choices(task)) {
      const Duration left = table[task.index() * instance.devices() + device.index()];
      const std::pair choice(state.clock().slot(task, device).end + left, device);
      if (!best || choice < *best) best = choice;
    }
    state.put(task, best->second);
  });
  return state.finish();
}

Placed heft_lookahead(const Instance& instance, const ListOptions& options) {
  const std::vector<Duration> rank = upward_ranks(instance, MeanCosts(instance));
  ListState state(instance, options.sends, Gaps::kFilled);
  for (const TaskId task : by_rank(rank)) {
    const std::span<const DeviceId> now = state.choices(task);
    const std::vector<DeviceId> choices(now.begin(), now.end());
    std::optional<std::tuple<Duration, Duration, DeviceId>> best;
    for (const DeviceId device : choices) {
      if (choices.size() == 1) {
        best = {Duration(), Duration(), device};
        break;
      }
      const ListClock::Mark mark = state.clock().mark();
      const Duration end = state.clock().set(task, device).end;
      const std::tuple choice(end_of_readers(state, task, rank), end, device);
      state.clock().back_to(mark);
      if (!best || choice < *best) best = choice;
    }
    state.clock().forget();
    state.put(task, std::get<2>(*best));
  }
  return state.finish();
}

Placed dpos(const Instance& instance, const ListOptions& options) {
  const MeanCosts mean(instance);
  const std::vector<Duration> rank = upward_ranks(instance, mean);
  const std::vector<TaskId> path = critical_path_of(instance, mean, rank);
  std::vector<bool> critical(instance.tasks());
  for (const TaskId task : path) critical[task.index()] = true;
  const std::vector<DeviceId> fastest = fastest_for(instance, path);
  std::size_t filled = 0;  // devices that the path has left behind
  ListState state(instance, options.sends, Gaps::kFilled);
  for (const TaskId task : by_rank(rank)) {
    DeviceId device = state.where_it_ends_first(task);
    if (critical[task.index()] && !state.decided(task)) {
      const std::span<const DeviceId> choices = state.choices(task);
      const std::span<const DeviceId> may = instance.allowed[instance.unit[task.index()].index()];
      while (filled < fastest.size() && is_one_of(may, fastest[filled]) &&
             !is_one_of(choices, fastest[filled])) {
        ++filled;
      }
      if (filled < fastest.size() && is_one_of(choices, fastest[filled])) device = fastest[filled];
    }
    state.put(task, device);
  }
  return state.finish();
}

}  // namespace espalier::placement
