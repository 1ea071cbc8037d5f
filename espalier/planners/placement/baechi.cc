#include "espalier/planners/placement/baechi.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/planners/placement/list_state.h"
#include "espalier/planners/placement/ranks.h"

// symbol of the papers            name here
//   EST(i, p)                     a pair's key
//   static level, b-level         rank
//   f(i), awake and urgent        favourite, Waiting, everywhere
//
// ETF asks of all ready tasks and all devices for the earliest start. Here each device has two heaps: tasks
// whose data would come later, by arrival, and tasks that could start at once, by level. So a step looks at
// the top of each device's heaps only. Arrivals are first told without contention; a pair that is chosen is
// asked again with the links as they are and goes back if it would start later. Starts only get later, so
// the pair that stays is the first.
//
// How we deviate:
// - memory: MemoryLedger, with received tensors; a pair whose device has no room is dropped for good, which
//   is right since devices only fill. A unit without any pair left goes where it lacks least, and the whole
//   is repaired in the end;
// - ties of start go to the higher level, then to the earlier end, then to the smaller task and device;
// - m_sct: after task i a device waits for its favourite f(i) until f(i)'s data could be anywhere, which is
//   when the favourite has no advantage left. Meanwhile it takes f(i), or a task whose data is everywhere by
//   then (urgent), or nothing;
// - m_topo: the share is of memory, not of time, as in the paper; it grows until all units have a device.
//
// Bad cases: m_topo never has two devices busy on a chain; m_etf takes no heed of how long a task's
// successors are beyond ties, and fills the links with messages that a later start would have spared.

namespace espalier::placement {
namespace {

struct LaterFirst {  // for heaps: the top is the smallest
  template <class T>
  bool operator()(const T& a, const T& b) const {
    return b < a;
  }
};

class EarliestTaskFirst {
 public:
  EarliestTaskFirst(const Instance& instance, Rules::Sends sends, Favourites favourites)
      : instance_(instance),
        state_(instance, sends, Gaps::kLeft),
        favourites_(std::move(favourites)),
        rank_(upward_ranks(instance, MeanCosts(instance))),
        waits_(instance.tasks()),
        everywhere_(instance.tasks()),
        pairs_left_(instance.tasks()),
        forced_(instance.units()),
        queues_(instance.devices()) {}

  Placed run() {
    for (std::size_t t = 0; t < instance_.tasks(); ++t) {
      waits_[t] = narrow(instance_.reads[t].size());
      if (waits_[t] == 0) make_ready(TaskId(t));
    }
    for (std::size_t set = 0; set < instance_.tasks(); ++set) take(next());
    return state_.finish();
  }

 private:
  using Later = std::tuple<Duration, Duration, TaskId>;  // arrival, -level, task
  using Now = std::tuple<Duration, TaskId>;              // -level, task
  template <class T>
  using Heap = std::priority_queue<T, std::vector<T>, LaterFirst>;
  struct Queue {
    Heap<Later> later;
    Heap<Now> now;
    std::optional<TaskId> favourite;  // it waits for that one …
    Duration until;                   // … until then
  };
  struct Pair {
    TaskId task;
    DeviceId device;
    Duration start;
  };

  Duration level(TaskId task) const { return -rank_[task.index()]; }

  void make_ready(TaskId task) {
    const std::size_t unit = instance_.unit[task.index()].index();
    const std::optional<DeviceId> decided = state_.decided(task);
    if (decided || forced_[unit]) {
      push(task, decided ? *decided : *forced_[unit]);
      return;
    }
    const std::span<const DeviceId> allowed = instance_.allowed[unit];
    pairs_left_[task.index()] = narrow(allowed.size());
    for (const DeviceId device : allowed) push(task, device);
  }

  void push(TaskId task, DeviceId device) {
    const Duration arrival = state_.clock().slot(task, device).ready;
    everywhere_[task.index()] = std::max(everywhere_[task.index()], arrival);
    queues_[device.index()].later.emplace(arrival, level(task), task);
  }

  // Whether a pair still stands. Without room it is dropped; with the last of a task's pairs its unit is
  // forced to where it lacks least.
  bool stands(TaskId task, DeviceId device) {
    if (state_.clock().is_set(task)) return false;
    const UnitId unit = instance_.unit[task.index()];
    if (const std::optional<DeviceId> decided = state_.decided(task)) return *decided == device;
    if (forced_[unit.index()]) return *forced_[unit.index()] == device;
    if (state_.ledger().fits(unit, device)) return true;
    if (--pairs_left_[task.index()] > 0) return false;
    const DeviceId forced = state_.choices(task).front();
    forced_[unit.index()] = forced;
    for (const TaskId other : instance_.tasks_of[unit.index()]) {
      // Not at once: the caller is about to take the top off a heap, perhaps this one's.
      if (waits_[other.index()] == 0 && !state_.clock().is_set(other)) to_push_.emplace_back(other, forced);
    }
    return false;
  }

  // A device's first pair, and when it could start.
  std::optional<Pair> first_of(DeviceId device) {
    Queue& queue = queues_[device.index()];
    const Duration free = state_.clock().free_from(device);
    while (!queue.later.empty() && std::get<0>(queue.later.top()) <= free) {
      const TaskId task = std::get<2>(queue.later.top());
      queue.later.pop();
      queue.now.emplace(level(task), task);
    }
    while (!queue.now.empty()) {
      const TaskId task = std::get<1>(queue.now.top());
      if (stands(task, device)) return Pair{task, device, free};
      queue.now.pop();
    }
    while (!queue.later.empty()) {
      const auto [arrival, unused, task] = queue.later.top();
      if (stands(task, device)) return Pair{task, device, std::max(free, arrival)};
      queue.later.pop();
    }
    return std::nullopt;
  }

  // The same with respect to the favourite that it waits for.
  std::optional<Pair> next_of(DeviceId device) {
    std::optional<Pair> first = first_of(device);
    Queue& queue = queues_[device.index()];
    if (!queue.favourite) return first;
    const TaskId favourite = *queue.favourite;
    if (state_.clock().is_set(favourite) ||
        (state_.decided(favourite) && state_.decided(favourite) != device)) {
      queue.favourite.reset();
      return first;
    }
    if (first && first->task != favourite && everywhere_[first->task.index()] > first->start) {
      first->start = std::max(first->start, queue.until);
    }
    if (waits_[favourite.index()] > 0 || !may_stand(favourite, device)) return first;
    const Duration start = state_.clock().slot(favourite, device).start;
    return first && first->start < start ? first : Pair{favourite, device, start};
  }

  bool may_stand(TaskId task, DeviceId device) const {
    const UnitId unit = instance_.unit[task.index()];
    const std::span<const DeviceId> allowed = instance_.allowed[unit.index()];
    return state_.decided(task) ||
           (std::binary_search(allowed.begin(), allowed.end(), device) && state_.ledger().fits(unit, device));
  }

  // The pair that starts first, with the links as they are.
  Pair next() {
    while (true) {
      std::optional<std::tuple<Duration, Duration, Duration, TaskId, DeviceId>> best;
      for (std::size_t d = 0; d < instance_.devices(); ++d) {
        const std::optional<Pair> pair = next_of(DeviceId(d));
        if (!pair) continue;
        const Duration time = instance_.time_on(pair->task, pair->device);
        const std::tuple key(pair->start, level(pair->task), time, pair->task, pair->device);
        if (!best || key < *best) best = key;
      }
      if (!to_push_.empty()) {  // the last pairs of a task were dropped: there are others now
        for (const auto& [task, device] : std::exchange(to_push_, {})) push(task, device);
        continue;
      }
      ESP_CHECK(best.has_value());
      const Pair pair{std::get<3>(*best), std::get<4>(*best), std::get<0>(*best)};
      const ListClock::Slot slot = state_.clock().slot(pair.task, pair.device);
      Queue& queue = queues_[pair.device.index()];
      if (slot.start <= pair.start || queue.favourite == pair.task) return pair;
      put_back(pair, slot.ready, queue);
    }
  }

  // The top of one of the device's heaps would start later than was thought.
  void put_back(const Pair& pair, Duration ready, Queue& queue) {
    if (!queue.now.empty() && std::get<1>(queue.now.top()) == pair.task) {
      queue.now.pop();
    } else {
      ESP_CHECK(!queue.later.empty() && std::get<2>(queue.later.top()) == pair.task);
      queue.later.pop();
    }
    queue.later.emplace(ready, level(pair.task), pair.task);
  }

  void take(const Pair& pair) {
    const ListClock::Slot slot = state_.put(pair.task, pair.device);
    Queue& queue = queues_[pair.device.index()];
    queue.favourite.reset();
    for (const ValueId value : instance_.produces[pair.task.index()]) {
      for (const TaskId reader : instance_.readers[value.index()]) {
        if (--waits_[reader.index()] == 0) make_ready(reader);
      }
    }
    if (favourites_.empty() || !favourites_[pair.task.index()]) return;
    queue.favourite = favourites_[pair.task.index()];
    queue.until = slot.end + longest_message(pair.task, *queue.favourite, pair.device);
  }

  // From the device to any other one.
  Duration longest_message(TaskId from, TaskId to, DeviceId device) const {
    Duration longest;
    for (const ValueId value : instance_.produces[from.index()]) {
      const std::span<const TaskId> readers = instance_.readers[value.index()];
      if (!std::binary_search(readers.begin(), readers.end(), to)) continue;
      for (std::size_t d = 0; d < instance_.devices(); ++d) {
        if (DeviceId(d) == device) continue;
        longest = std::max(longest,
                           message_time(instance_.way(device, DeviceId(d)), instance_.bytes[value.index()]));
      }
    }
    return longest;
  }

  const Instance& instance_;
  ListState state_;
  const Favourites favourites_;  // empty: nobody waits
  const std::vector<Duration> rank_;
  std::vector<std::uint32_t> waits_;             // by task: values that it reads and nobody has produced
  std::vector<Duration> everywhere_;             // by task: when all that it reads could be on any device
  std::vector<std::uint32_t> pairs_left_;        // by task
  std::vector<std::optional<DeviceId>> forced_;  // by unit without room anywhere
  std::vector<std::pair<TaskId, DeviceId>> to_push_;  // of units that were forced just now
  std::vector<Queue> queues_;                         // by device
};

}  // namespace

Placed m_topo(const Instance& instance, std::span<const UnitId> order) {
  Bytes all, largest;
  MemoryLedger sizes(instance);
  for (std::size_t i = 0; i < sizes.items(); ++i) all += sizes.bytes_of(narrow(i));
  for (std::size_t u = 0; u < instance.units(); ++u) largest = std::max(largest, sizes.alone(UnitId(u)));
  const auto devices = static_cast<std::int64_t>(instance.devices());
  const Bytes share = all / devices + largest;
  MemoryLedger ledger(instance);
  Assignment assignment(instance.units());
  std::size_t device = 0;
  for (const UnitId unit : order) {
    const std::span<const DeviceId> allowed = instance.allowed[unit.index()];
    const auto may = [&](std::size_t d) {
      return std::binary_search(allowed.begin(), allowed.end(), DeviceId(d));
    };
    while (device + 1 < instance.devices() &&
           std::min(share, instance.memory[device]) < ledger.needs_with(unit, DeviceId(device)) &&
           may(device)) {
      ++device;
    }
    DeviceId chosen(device);
    if (!may(device) || !ledger.fits(unit, chosen)) {
      // Another device with room that it may stand on, if there is one.
      const auto fits = [&](DeviceId each) { return ledger.fits(unit, each); };
      const auto other = std::find_if(allowed.begin(), allowed.end(), fits);
      chosen = other != allowed.end() ? *other : may(device) ? chosen : allowed.front();
    }
    ledger.place(unit, chosen);
    assignment[unit.index()] = chosen;
  }
  return placed_by(instance, std::move(assignment));
}

Placed m_etf(const Instance& instance, const EtfOptions& options) {
  return EarliestTaskFirst(instance, options.sends, {}).run();
}

Placed m_sct(const Instance& instance, const SctOptions& options) {
  const bool small = instance.reads.items.size() <= options.max_edges;
  Favourites favourites =
      favourite_children(instance, small ? FavouriteRule::kLinearProgram : FavouriteRule::kGreedy);
  return EarliestTaskFirst(instance, options.sends, std::move(favourites)).run();
}

}  // namespace espalier::placement
