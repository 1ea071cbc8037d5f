#include "espalier/sim/route_table.h"

namespace espalier::internal {

RouteTable::RouteTable(const Cluster& cluster) : cluster_(&cluster), devices_(cluster.devices().size()) {
  if (devices_ > kMaxDense) return;
  for (std::size_t from = 0; from < devices_; ++from) {
    for (std::size_t to = 0; to < devices_; ++to) {
      dense_.push_back(cluster.route(DeviceId(from), DeviceId(to)));
    }
  }
}

const Route& RouteTable::met(DeviceId from, DeviceId to) {
  const auto [at, added] = met_.try_emplace(std::uint64_t{from.index()} << 32 | to.index());
  if (added) at->second = cluster_->route(from, to);
  return at->second;
}

}  // namespace espalier::internal
