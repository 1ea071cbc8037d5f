#include "espalier/planners/placement/descent.h"

#include <algorithm>

#include "espalier/base/check.h"

namespace espalier::placement {
namespace {

template <class T>
void shuffle_by(std::vector<T>& items, Rng& rng) {
  for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[rng.below(i)]);
}

constexpr std::size_t kMostTries = 400;  // of one path
constexpr std::size_t kClusterOfPath = 8;

}  // namespace

void coordinate_descent(Walk& walk, Rng& rng) {
  std::vector<UnitId> units(walk.around().movable().begin(), walk.around().movable().end());
  for (bool gained = true; gained && walk.goes_on();) {
    gained = false;
    shuffle_by(units, rng);
    for (const UnitId unit : units) {
      for (const DeviceId device : walk.around().instance().allowed[unit.index()]) {
        const Incremental::Move move{unit, device};
        if (walk.at()[unit.index()] == device) continue;
        gained = walk.offer(std::span(&move, 1), walk.score() - nanoseconds(1)) || gained;
      }
      if (!walk.goes_on()) return;
    }
  }
}

std::vector<TaskId> critical_tasks(const Instance& instance, std::span<const DeviceId> at,
                                   const Timeline& timeline) {
  std::vector<TaskId> path;
  if (timeline.end.empty()) return path;
  // The task that ran before each on its device.
  std::vector<std::optional<TaskId>> before(instance.tasks());
  for (std::size_t d = 0; d < timeline.lists.size(); ++d) {
    const std::span<const TaskId> list = timeline.lists[d];
    for (std::size_t i = 1; i < list.size(); ++i) before[list[i].index()] = list[i - 1];
  }
  std::vector<std::vector<std::pair<DeviceId, Duration>>> arrivals(instance.values());
  for (const Timeline::Message& message : timeline.messages)
    arrivals[message.value.index()].emplace_back(message.to, message.arrival);
  std::optional<TaskId> next(static_cast<std::size_t>(
      std::max_element(timeline.end.begin(), timeline.end.end()) - timeline.end.begin()));
  while (next && path.size() <= instance.tasks()) {
    const TaskId task = *next;
    path.push_back(task);
    next = before[task.index()];
    Duration latest = next ? timeline.end[next->index()] : Duration(-1);
    for (const ValueId value : instance.reads[task.index()]) {
      const TaskId from = instance.producer[value.index()];
      Duration came = timeline.end[from.index()];
      for (const auto& [device, arrival] : arrivals[value.index()]) {
        if (device == at[instance.unit[task.index()].index()]) came = std::max(came, arrival);
      }
      if (came >= latest) latest = came, next = from;
    }
  }
  std::reverse(path.begin(), path.end());
  return path;
}

namespace {

// Changes that touch the path, those of its borders first.
std::vector<Change> path_changes(const Walk& walk, const std::vector<TaskId>& path, Rng& rng) {
  const Neighbourhood& around = walk.around();
  const Instance& instance = around.instance();
  const Assignment& at = walk.at();
  std::vector<Change> borders, others;
  const auto add = [&](std::vector<Change>& list, UnitId unit, DeviceId to) {
    if (Change change = all_to(around, at, std::span(&unit, 1), to); !change.empty()) {
      list.push_back(std::move(change));
      const std::vector<UnitId> cluster = cluster_around(around, at, unit, 2 + rng.below(kClusterOfPath));
      if (Change more = all_to(around, at, cluster, to); more.size() > 1) list.push_back(std::move(more));
    }
  };
  std::vector<bool> seen(instance.units());
  for (std::size_t i = 0; i < path.size(); ++i) {
    const UnitId unit = instance.unit[path[i].index()];
    if (i > 0) {
      const UnitId last = instance.unit[path[i - 1].index()];
      if (at[last.index()] != at[unit.index()]) {
        add(borders, unit, at[last.index()]);
        add(borders, last, at[unit.index()]);
      }
    }
    if (seen[unit.index()]) continue;
    seen[unit.index()] = true;
    for (const DeviceId device : instance.allowed[unit.index()]) add(others, unit, device);
  }
  shuffle_by(borders, rng);
  shuffle_by(others, rng);
  borders.insert(borders.end(), std::make_move_iterator(others.begin()),
                 std::make_move_iterator(others.end()));
  if (borders.size() > kMostTries) borders.resize(kMostTries);
  return borders;
}

}  // namespace

void path_descent(Walk& walk, Rng& rng) {
  for (bool gained = true; gained && walk.goes_on();) {
    gained = false;
    if (!walk.count_one()) return;
    const Timeline now = timeline(walk.engine(), walk.at());
    const std::vector<TaskId> path = critical_tasks(walk.around().instance(), walk.at(), now);
    for (const Change& change : path_changes(walk, path, rng)) {
      if (!walk.goes_on()) return;
      // The path changes with each step; what was made for the old one is still worth a look.
      Change left;
      for (const Incremental::Move& move : change) {
        if (walk.at()[move.unit.index()] != move.device) left.push_back(move);
      }
      gained = walk.offer(left, walk.score() - nanoseconds(1)) || gained;
    }
  }
}

namespace {

constexpr std::size_t kPartOfKick = 16;  // of the units, that a change of a kick moves at most

}  // namespace

void kick(Walk& walk, Rng& rng) {
  if (walk.best()) walk.go_to(walk.best()->assignment);
  const std::size_t most = std::max<std::size_t>(2, walk.around().movable().size() / kPartOfKick);
  for (std::uint64_t steps = 2 + rng.below(3); steps > 0 && walk.goes_on(); --steps) {
    const auto kind = static_cast<MoveKind>(rng.below(kMoveKinds));
    walk.offer(random_change(walk.around(), walk.at(), kind, most, rng), Duration::max());
  }
}

}  // namespace espalier::placement
