#include "espalier/planners/placement/moves.h"

#include <algorithm>

#include "espalier/base/check.h"

namespace espalier::placement {
namespace {

// A unit of many neighbours (a mask that all layers read) says little of where they should stand.
constexpr std::size_t kMostNeighbours = 64;

// 2, 3, … most: half as likely with each doubling, so that small changes are many and large ones happen.
std::size_t some_length(std::size_t most, Rng& rng) {
  std::size_t length = 2;
  while (length < most && rng.below(2) == 0) length *= 2;
  return std::min(most, length + rng.below(length));
}

DeviceId other_device(const Neighbourhood& around, DeviceId now, Rng& rng) {
  const std::size_t devices = around.instance().devices();
  return DeviceId((now.index() + 1 + rng.below(devices - 1)) % devices);
}

Change unit_change(const Neighbourhood& around, std::span<const DeviceId> at, Rng& rng) {
  const UnitId unit = around.movable()[rng.below(around.movable().size())];
  const std::span<const UnitId> near = around.neighbours(unit);
  DeviceId to = other_device(around, at[unit.index()], rng);
  if (!near.empty() && rng.below(2) == 0) {
    const DeviceId beside = at[near[rng.below(near.size())].index()];
    if (beside != at[unit.index()]) to = beside;
  }
  return all_to(around, at, std::span(&unit, 1), to);
}

Change cluster_change(const Neighbourhood& around, std::span<const DeviceId> at, std::size_t most, Rng& rng) {
  const UnitId unit = around.movable()[rng.below(around.movable().size())];
  const DeviceId to = other_device(around, at[unit.index()], rng);
  return all_to(around, at, cluster_around(around, at, unit, some_length(most, rng)), to);
}

Change range_change(const Neighbourhood& around, std::span<const DeviceId> at, std::size_t most, Rng& rng) {
  const std::span<const UnitId> line = around.movable();
  const std::size_t length = std::min(line.size(), some_length(most, rng));
  const std::size_t begin = rng.below(line.size() - length + 1);
  return all_to(around, at, line.subspan(begin, length), other_device(around, at[line[begin].index()], rng));
}

Change swap_change(const Neighbourhood& around, std::span<const DeviceId> at, Rng& rng) {
  const std::span<const UnitId> line = around.movable();
  const UnitId a = line[rng.below(line.size())];
  for (int tries = 0; tries < 8; ++tries) {
    const UnitId b = line[rng.below(line.size())];
    const DeviceId from = at[a.index()], to = at[b.index()];
    if (from != to && around.may_stand(a, to) && around.may_stand(b, from)) return {{a, to}, {b, from}};
  }
  return {};
}

}  // namespace

Neighbourhood::Neighbourhood(const Instance& instance)
    : instance_(instance), places_(instance.units() * instance.devices()) {
  std::vector<std::vector<UnitId>> near(instance.units());
  for (std::size_t value = 0; value < instance.values(); ++value) {
    const UnitId from = instance.unit[instance.producer[value].index()];
    for (const TaskId reader : instance.readers[value]) {
      const UnitId to = instance.unit[reader.index()];
      if (to == from) continue;
      near[from.index()].push_back(to);
      near[to.index()].push_back(from);
    }
  }
  std::vector<std::pair<TaskId, UnitId>> line;
  for (std::size_t u = 0; u < instance.units(); ++u) {
    std::sort(near[u].begin(), near[u].end());
    near[u].erase(std::unique(near[u].begin(), near[u].end()), near[u].end());
    neighbours_.items.insert(neighbours_.items.end(), near[u].begin(), near[u].end());
    neighbours_.close();
    for (const DeviceId device : instance.allowed[u]) places_[u * instance.devices() + device.index()] = true;
    if (instance.allowed[u].size() > 1) line.emplace_back(instance.tasks_of[u].front(), UnitId(u));
  }
  std::sort(line.begin(), line.end());
  for (const auto& [task, unit] : line) movable_.push_back(unit);
}

Change random_change(const Neighbourhood& around, std::span<const DeviceId> at, MoveKind kind,
                     std::size_t most, Rng& rng) {
  ESP_CHECK(!around.movable().empty() && most >= 2, most);
  switch (kind) {
    case MoveKind::kCluster:
      return cluster_change(around, at, most, rng);
    case MoveKind::kRange:
      return range_change(around, at, most, rng);
    case MoveKind::kSwap:
      return swap_change(around, at, rng);
    case MoveKind::kUnit:
      break;
  }
  return unit_change(around, at, rng);
}

std::vector<UnitId> cluster_around(const Neighbourhood& around, std::span<const DeviceId> at, UnitId unit,
                                   std::size_t most) {
  std::vector<UnitId> cluster = {unit};
  for (std::size_t i = 0; i < cluster.size() && cluster.size() < most; ++i) {
    const std::span<const UnitId> near = around.neighbours(cluster[i]);
    if (near.size() > kMostNeighbours && i > 0) continue;
    for (const UnitId next : near) {
      if (cluster.size() == most) break;
      if (at[next.index()] != at[unit.index()]) continue;
      if (std::find(cluster.begin(), cluster.end(), next) == cluster.end()) cluster.push_back(next);
    }
  }
  return cluster;
}

Change all_to(const Neighbourhood& around, std::span<const DeviceId> at, std::span<const UnitId> units,
              DeviceId device) {
  Change change;
  for (const UnitId unit : units) {
    if (at[unit.index()] != device && around.may_stand(unit, device)) change.push_back({unit, device});
  }
  return change;
}

double exponential(Rng& rng) {
  for (double whole = 0;; ++whole) {
    const double first = rng.unit();
    double last = first;
    for (bool odd = true;; odd = !odd) {
      const double next = rng.unit();
      if (next > last && odd) return whole + first;
      if (next > last) break;
      last = next;
    }
  }
}

}  // namespace espalier::placement
