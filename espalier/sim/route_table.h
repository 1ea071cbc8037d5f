#pragma once

// Routes by pair of devices: all of them up front on small clusters, as they are met on large ones.

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "espalier/cluster/cluster.h"

namespace espalier::internal {

class RouteTable {
 public:
  explicit RouteTable(const Cluster& cluster);
  static constexpr std::size_t kMaxDense = 128;  // devices

  // Stays where it is as long as the table does. Not for two threads at a time.
  const Route& of(DeviceId from, DeviceId to) {
    return dense_.empty() ? met(from, to) : dense_[from.index() * devices_ + to.index()];
  }

 private:
  const Route& met(DeviceId from, DeviceId to);

  const Cluster* cluster_;
  std::size_t devices_;
  std::vector<Route> dense_;
  std::unordered_map<std::uint64_t, Route> met_;
};

}  // namespace espalier::internal
