#include "espalier/planners/pipeline/equal_groups.h"

#include <algorithm>

#include "espalier/planners/candidate.h"
#include "espalier/planners/pipeline/chain_split.h"
#include "espalier/planners/pipeline/device_row.h"

namespace espalier {

std::vector<DeviceGroups> equal_groups(const std::vector<DeviceId>& row, std::size_t blocks,
                                       std::int64_t micro_batches) {
  std::vector<DeviceGroups> all;
  for (std::size_t stages = 1; stages <= std::min(row.size(), blocks); ++stages) {
    const std::size_t replicas = row.size() / stages;
    if (stages * replicas != row.size() || static_cast<std::int64_t>(replicas) > micro_batches) continue;
    DeviceGroups groups;
    for (std::size_t s = 0; s < stages; ++s) {
      const auto begin = row.begin() + static_cast<std::ptrdiff_t>(s * replicas);
      groups.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(replicas));
    }
    all.push_back(std::move(groups));
  }
  return all;
}

void for_each_grouped_chain(const Problem& problem, const Context& context,
                            const std::function<void(const GroupedChain&)>& visit) {
  const Linearization line(problem, chain_order(problem.graph));
  const std::vector<DeviceId> devices = unpinned_devices(problem);
  for (const BatchSize micro_batch : usable_micro_batches(problem)) {
    const Chain chain(line, micro_batch);
    if (chain.blocks() == 0) return;
    const std::int64_t m = problem.training.batch.count() / micro_batch.count();
    for (const std::vector<DeviceId>& row : device_rows(problem.cluster, devices, chain.times_by_kind())) {
      for (const DeviceGroups& groups : equal_groups(row, chain.blocks(), m)) {
        if (context.stop()) return;
        visit({chain, groups, m});
      }
    }
  }
}

GroupTimes group_times(const Chain& chain, const std::vector<DeviceId>& group, std::size_t first,
                       std::size_t last) {
  GroupTimes slowest;
  for (const DeviceId device : group) {
    const KindId kind = chain.line().problem().cluster.device(device).kind;
    const Duration forward = chain.forward(kind, first, last);
    slowest.forward = std::max(slowest.forward, forward);
    slowest.backward = std::max(slowest.backward, chain.work(kind, Crowd::kAlone, first, last) - forward);
  }
  return slowest;
}

std::vector<StageDraft> grouped_drafts(const GroupedChain& grouped, const std::vector<std::size_t>& ends) {
  ChainSplit split;
  for (std::size_t s = 0; s < ends.size(); ++s) {
    split.stages.push_back({s == 0 ? 0 : ends[s - 1], ends[s], grouped.groups[s]});
  }
  std::vector<StageDraft> drafts = drafts_of(grouped.chain, split);
  for (std::size_t s = 1; s < drafts.size(); ++s) drafts[s].after = {s - 1};
  return drafts;
}

}  // namespace espalier
