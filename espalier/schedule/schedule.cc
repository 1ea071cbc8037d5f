#include "espalier/schedule/schedule.h"

#include <algorithm>

#include "espalier/base/check.h"

namespace espalier {
namespace {

void join(std::vector<LinkIndex>& links, const std::vector<LinkIndex>& more) {
  links.insert(links.end(), more.begin(), more.end());
}

template <class T>
void sort_unique(std::vector<T>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

Collective all_reduce(const StagedStage& stage, const Cluster& cluster) {
  Collective result;
  result.bytes = stage.reduced;
  std::size_t ranks = 0;
  for (const StagedReplica& replica : stage.replicas) {
    ranks = std::max(ranks, replica.devices.size());
    result.members.insert(result.members.end(), replica.devices.begin(), replica.devices.end());
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::vector<DeviceId> ring;
    for (const StagedReplica& replica : stage.replicas) {
      if (rank < replica.devices.size()) ring.push_back(replica.devices[rank]);
    }
    const CollectiveCost cost = all_reduce_cost(cluster, ring, stage.reduced);
    result.hold = std::max(result.hold, cost.hold);
    result.latency = std::max(result.latency, cost.latency);
    join(result.links, cost.links);
  }
  return result;
}

Collective tied_sum(const StagedModel& model, const Tie& tie, const Cluster& cluster) {
  Collective result;
  result.bytes = tie.bytes;
  std::vector<DeviceId> senders;
  for (const StageId stage : tie.stages) {
    const std::vector<StagedReplica>& replicas = model.stages[stage.index()].replicas;
    senders.push_back(replicas.front().devices.front());
    for (const StagedReplica& replica : replicas) {
      result.members.insert(result.members.end(), replica.devices.begin(), replica.devices.end());
    }
  }
  sort_unique(result.members);
  const DeviceId root = senders.front();
  Duration gather, give_back;  // what the last of the others waits beside the links
  senders.erase(senders.begin());
  sort_unique(senders);
  const bool root_adds_alone = has_all_copies(model, tie, root);
  for (const DeviceId sender : senders) {
    const Route route = cluster.route(sender, root);
    if (root_adds_alone) {
      gather = std::max(gather, route.latency);
      continue;
    }
    result.hold += route.hold(tie.bytes);
    gather = std::max(gather, route.send.of(tie.bytes) + route.latency);
    result.latency += route.receive.of(tie.bytes);
    join(result.links, route.links);
  }
  for (const DeviceId member : result.members) {
    const Route route = cluster.route(root, member);
    if (has_all_copies(model, tie, member)) {
      give_back = std::max(give_back, route.latency);
      continue;
    }
    result.hold += route.hold(tie.bytes);
    give_back = std::max(give_back, route.latency + route.receive.of(tie.bytes));
    result.latency += route.send.of(tie.bytes);
    join(result.links, route.links);
  }
  result.latency += gather + give_back;
  return result;
}

}  // namespace

bool recomputes(const StagedStage& stage) {
  return stage.memory.recomputed > Bytes() ||
         std::any_of(stage.replicas.begin(), stage.replicas.end(),
                     [](const StagedReplica& replica) { return replica.times.recompute > Duration(); });
}

bool reduces(const StagedStage& stage) {
  return stage.replicas.size() > 1 && stage.reduced > Bytes();
}

bool updates(const StagedStage& stage) {
  return stage.memory.gradients > Bytes() ||
         std::any_of(stage.replicas.begin(), stage.replicas.end(),
                     [](const StagedReplica& replica) { return replica.times.update > Duration(); });
}

bool can_split(const StagedStage& stage) {
  return stage.memory.gradients > Bytes() ||
         std::any_of(stage.replicas.begin(), stage.replicas.end(),
                     [](const StagedReplica& replica) { return replica.times.weight_gradient > Duration(); });
}

Collective collective_of(const StagedModel& model, const Cluster& cluster, const Action& action) {
  ESP_CHECK(is_sum(action.kind), letter(action.kind));
  Collective result = action.kind == ActionKind::kAllReduce
                          ? all_reduce(model.stages.at(action.stage().index()), cluster)
                          : tied_sum(model, model.ties.at(action.tie().index()), cluster);
  sort_unique(result.members);
  sort_unique(result.links);
  return result;
}

}  // namespace espalier
