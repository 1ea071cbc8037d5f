// All-reduces and tied sums of a ListStructure: who takes part, over which routes (collective_of,
// schedule.h); and which links belong to one channel alone.

#include <algorithm>
#include <set>

#include "espalier/sim/list_builder.h"

namespace espalier::internal {

std::uint32_t ListBuilder::route(DeviceId from, DeviceId to) {
  out_->routes.push_back(&routes_.of(from, to));
  return narrow(out_->routes.size() - 1);
}

void ListBuilder::add_leg(ListLeg leg, DeviceId from, DeviceId to) {
  leg.route = route(from, to);
  out_->legs.push_back(leg);
  const std::vector<LinkIndex>& links = out_->routes[leg.route]->links;
  out_->collective_links.insert(out_->collective_links.end(), links.begin(), links.end());
}

void ListBuilder::add_collectives() {
  std::uint32_t rank = narrow(out_->sends.size());
  for (std::size_t i = 0; i < out_->collectives.size(); ++i) {
    ListCollective& collective = out_->collectives[i];
    const CollectiveSlots& found = found_collectives_[i];
    collective.rank = rank++;
    collective.first_leg = narrow(out_->legs.size());
    collective.first_link = narrow(out_->collective_links.size());
    if (!once_per_step(found.kind)) {
      collective.action = narrow(found.subject);
    } else if (found.kind == ActionKind::kAllReduce) {
      add_all_reduce(collective, StageId(found.subject));
    } else {
      add_tied_sum(collective, found.subject);
    }
    collective.legs = narrow(out_->legs.size()) - collective.first_leg;
    const auto links = out_->collective_links.begin() + collective.first_link;
    std::sort(links, out_->collective_links.end());
    out_->collective_links.erase(std::unique(links, out_->collective_links.end()),
                                 out_->collective_links.end());
    collective.links = narrow(out_->collective_links.size()) - collective.first_link;
  }
}

// A ring for each rank in the replicas' groups.
void ListBuilder::add_all_reduce(ListCollective& collective, StageId stage) {
  collective.bytes = out_->layout.of_stage(stage.index(), ListLayout::kReduced);
  const std::vector<StagedReplica>& replicas = model_->stages[stage.index()].replicas;
  std::size_t ranks = 0;
  for (const StagedReplica& replica : replicas) ranks = std::max(ranks, replica.devices.size());
  std::vector<DeviceId> ring;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    ring.clear();
    for (const StagedReplica& replica : replicas) {
      if (rank < replica.devices.size()) ring.push_back(replica.devices[rank]);
    }
    if (ring.size() == 1) continue;
    for (std::size_t i = 0; i < ring.size(); ++i) {
      add_leg({0, ListLeg::Kind::kRing, narrow(rank), narrow(ring.size())}, ring[i],
              ring[(i + 1) % ring.size()]);
    }
  }
}

// From the first device of each other stage to that of the lowest, from there to all members.
void ListBuilder::add_tied_sum(ListCollective& collective, std::size_t tie) {
  collective.bytes = out_->layout.tie(tie);
  const std::vector<StageId>& stages = model_->ties[tie].stages;
  const auto first_device = [&](StageId stage) {
    return model_->stages[stage.index()].replicas.front().devices.front();
  };
  const DeviceId root = first_device(stages.front());
  std::set<DeviceId> senders, members;
  for (const StageId stage : stages) {
    if (stage != stages.front()) senders.insert(first_device(stage));
    for (const StagedReplica& replica : model_->stages[stage.index()].replicas) {
      members.insert(replica.devices.begin(), replica.devices.end());
    }
  }
  for (const DeviceId sender : senders) add_leg({0, ListLeg::Kind::kGather, 0, 0}, sender, root);
  for (const DeviceId member : members) add_leg({0, ListLeg::Kind::kReturn, 0, 0}, root, member);
}

void ListBuilder::find_lone_channels() {
  link_users_.assign(link_count_, 0);
  for (const LinkIndex link : out_->collective_links) ++link_users_[link];
  for (const ListHop& hop : out_->hops) {  // a channel whose first hop is not free counts once
    ListChannel& channel = out_->channels[hop.channel];
    if (hop.free || channel.alone) continue;
    channel.alone = true;
    for (const LinkIndex link : out_->routes[channel.route]->links) ++link_users_[link];
  }
  for (ListChannel& channel : out_->channels) {
    const std::vector<LinkIndex>& links = out_->routes[channel.route]->links;
    channel.alone =
        std::all_of(links.begin(), links.end(), [&](LinkIndex link) { return link_users_[link] == 1; });
  }
}

}  // namespace espalier::internal
