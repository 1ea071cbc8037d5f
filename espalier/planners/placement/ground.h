#pragma once

// What walks of a search move: the units of an instance, or clusters of it as units.

#include <optional>
#include <vector>

#include "espalier/placement/engine.h"
#include "espalier/planners/placement/clusters.h"
#include "espalier/planners/placement/moves.h"

namespace espalier::placement {

class Ground {
 public:
  // Refers to instance and clusters; without clusters units move. O(instance · orders).
  Ground(const Instance& whole, const Rules& rules, const std::vector<DeviceOrders>& orders,
         const Clusters* clusters = nullptr);
  Ground(const Ground&) = delete;
  Ground& operator=(const Ground&) = delete;

  const Neighbourhood& around() const { return around_; }
  const std::vector<Engine>& engines() const { return engines_; }  // by order
  void set_engine(std::size_t order, Engine engine) { engines_[order] = std::move(engine); }

  // Where what moves stands, of an assignment of units: a cluster where most of its work is; and back.
  Assignment from_units(const Assignment& units) const;
  Assignment to_units(const Assignment& here) const;

 private:
  const Instance& whole_;
  const Clusters* clusters_;
  std::optional<Instance> joined_;
  Neighbourhood around_;
  std::vector<Engine> engines_;
};

}  // namespace espalier::placement
