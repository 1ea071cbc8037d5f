#pragma once

// Changes of an assignment, as searches try them.
//
//   unit     one unit to another device, half the time one where a neighbour stands
//   cluster  a connected set of units of one device, to another device
//   range    a run of units in topological order, all to one device: moves a border, or cuts a new one
//   swap     two units of different devices change places
//
// Two units are neighbours where a value passes between them. Units that may not stand where a change sends
// them are left out of it. A change names each unit once and moves it; it may be empty.

#include <cstdint>
#include <span>
#include <vector>

#include "espalier/base/rng.h"
#include "espalier/placement/engine.h"

namespace espalier::placement {

using Change = std::vector<Incremental::Move>;

enum class MoveKind : std::uint8_t { kUnit, kCluster, kRange, kSwap };
inline constexpr std::size_t kMoveKinds = 4;

// What changes are made from: who is whose neighbour, and who may stand where. Refers to the instance, and
// never changes: any number of threads may read it.
class Neighbourhood {
 public:
  explicit Neighbourhood(const Instance& instance);  // O(instance)

  const Instance& instance() const { return instance_; }
  std::span<const UnitId> neighbours(UnitId unit) const { return neighbours_[unit.index()]; }
  bool may_stand(UnitId unit, DeviceId device) const {
    return places_[unit.index() * instance_.devices() + device.index()];
  }
  // Units that may stand on more than one device, by first task: a topological order, where units are single
  // tasks.
  std::span<const UnitId> movable() const { return movable_; }

 private:
  const Instance& instance_;
  Lists<UnitId> neighbours_;
  std::vector<bool> places_;
  std::vector<UnitId> movable_;
};

// Needs a movable unit. `most`: units of a cluster or range, at least 2. O(most · neighbours).
Change random_change(const Neighbourhood& around, std::span<const DeviceId> at, MoveKind kind,
                     std::size_t most, Rng& rng);

// The units of one device around a unit, nearest first, at most so many. O(most · neighbours).
std::vector<UnitId> cluster_around(const Neighbourhood& around, std::span<const DeviceId> at, UnitId unit,
                                   std::size_t most);

// All those that are not there and may be.
Change all_to(const Neighbourhood& around, std::span<const DeviceId> at, std::span<const UnitId> units,
              DeviceId device);

// Exponentially distributed with mean one, by comparisons alone (von Neumann, 1951): the same on every
// machine, unlike a logarithm.
double exponential(Rng& rng);

}  // namespace espalier::placement
