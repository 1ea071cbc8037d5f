#include "espalier/planners/pipeline/graphpipe_layout.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "espalier/base/check.h"

namespace espalier::internal {

std::vector<std::vector<DeviceId>> devices_in_a_row(const PipePlan& plan, const DeviceRow& row) {
  std::vector<std::vector<DeviceId>> devices;
  for (const PipeStage& stage : plan.stages) {
    devices.push_back(stage.pinned ? std::vector{*stage.pinned}
                                   : row.run(stage.begin, stage.begin + stage.replicas));
  }
  return devices;
}

std::vector<std::vector<DeviceId>> devices_by_host(const PipePlan& plan, const DeviceRow& row) {
  const Cluster& cluster = row.table().problem().cluster;
  std::vector<std::vector<DeviceId>> hosts;  // what is free, last device first
  std::map<GroupId, std::size_t> host_of;
  for (std::size_t d = row.size(); d-- > 0;) {
    const auto [at, fresh] = host_of.try_emplace(cluster.device(row[d]).group, hosts.size());
    if (fresh) hosts.emplace_back();
    hosts[at->second].push_back(row[d]);
  }
  std::reverse(hosts.begin(), hosts.end());
  std::vector<std::size_t> order(plan.stages.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return plan.stages[a].replicas > plan.stages[b].replicas;
  });
  std::vector<std::vector<DeviceId>> devices(plan.stages.size());
  for (const std::size_t s : order) {
    const PipeStage& stage = plan.stages[s];
    if (stage.pinned) {
      devices[s] = {*stage.pinned};
      continue;
    }
    while (devices[s].size() < stage.replicas) {
      const std::size_t missing = stage.replicas - devices[s].size();
      std::vector<DeviceId>* chosen = nullptr;  // the least room that suffices, else the most
      for (std::vector<DeviceId>& host : hosts) {
        if (host.empty()) continue;
        const bool suffices = host.size() >= missing;
        const bool has_better =
            chosen && (suffices ? chosen->size() >= missing && chosen->size() <= host.size()
                                : chosen->size() >= host.size());
        if (!has_better) chosen = &host;
      }
      ESP_CHECK(chosen != nullptr, missing);
      for (std::size_t i = std::min(missing, chosen->size()); i > 0; --i) {
        devices[s].push_back(chosen->back());
        chosen->pop_back();
      }
    }
  }
  return devices;
}

}  // namespace espalier::internal
