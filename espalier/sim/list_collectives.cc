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
  if (leg.kind == ListLeg::Kind::kArrives || leg.kind == ListLeg::Kind::kLeaves) return;
  const std::vector<LinkIndex>& links = out_->routes[leg.route]->links;
  out_->collective_links.insert(out_->collective_links.end(), links.begin(), links.end());
}

// Sums go on beside their lanes, one after the other; an update waits for the last that its stage is in.
void ListBuilder::add_sums() {
  out_->sums.clear();
  out_->sums_begin.assign(1, 0);
  out_->sum_updates.clear();
  out_->sum_count = 0;
  awaited_sums_.clear();
  sum_of_stage_.assign(found_collectives_.empty() ? 0 : model_->stages.size(), kNone);
  for (std::uint32_t lane = 0; lane < out_->devices.size(); ++lane) {
    if (!found_collectives_.empty()) add_sums_of(lane);
    out_->sums_begin.push_back(narrow(out_->sums.size()));
  }
  std::stable_sort(awaited_sums_.begin(), awaited_sums_.end(),
                   [](const AwaitedSum& a, const AwaitedSum& b) { return a.sum < b.sum; });
  for (const AwaitedSum& awaited : awaited_sums_) {
    ListSum& sum = out_->sums[awaited.sum];
    if (sum.updates++ == 0) sum.first_update = narrow(out_->sum_updates.size());
    out_->sum_updates.push_back(awaited.update);
    ++out_->waits[awaited.update];
  }
  for (const CollectiveSlots& found : found_collectives_)
    out_->sum_count += once_per_step(found.kind) ? 1 : 0;
}

void ListBuilder::add_sums_of(std::uint32_t lane) {
  const std::uint32_t first = narrow(out_->sums.size());
  for (std::uint32_t slot = out_->lane_begin[lane]; slot < out_->lane_begin[lane + 1]; ++slot) {
    const RawChange raw = raw_changes_[slot];
    if (!once_per_step(raw.kind)) continue;
    if (raw.kind != ActionKind::kUpdate) {
      add_sum(slot, lane);
      continue;
    }
    const std::uint32_t sum = sum_of_stage_[raw.stage];
    if (sum != kNone && sum >= first) awaited_sums_.push_back({sum, slot});
  }
}

void ListBuilder::add_sum(std::uint32_t slot, std::uint32_t lane) {
  const std::uint32_t number = narrow(out_->sums.size());
  ListSum sum;
  sum.slot = slot;
  sum.lane = lane;
  sum.collective = out_->entries[slot].work - out_->first_collective;
  const CollectiveSlots& found = found_collectives_[sum.collective];
  if (found.kind == ActionKind::kTieSum) {
    const Tie& tie = model_->ties[found.subject];
    for (const StageId stage : tie.stages) sum_of_stage_[stage.index()] = number;
    const StagedStage& lowest = model_->stages[tie.stages.front().index()];
    sum.figure = out_->layout.tie(found.subject);
    sum.times = out_->devices[lane] == lowest.replicas.front().devices.front() ? 3 : 1;
  } else {
    sum_of_stage_[found.subject] = number;
    sum.figure = out_->layout.of_stage(found.subject, ListLayout::kReduceScratch);
  }
  out_->sums.push_back(sum);
}

void ListBuilder::add_collectives() {
  // Of a sum the members are its places in `sums`, which stand by slot as the members of each do.
  std::stable_sort(members_.begin(), members_.end(),
                   [](const Member& a, const Member& b) { return a.collective < b.collective; });
  for (const Member& member : members_) {
    ListCollective& entry = out_->collectives[member.collective];
    if (entry.members++ == 0) entry.first_member = narrow(out_->members.size());
    const auto sum = std::lower_bound(out_->sums.begin(), out_->sums.end(), member.slot,
                                      [](const ListSum& a, std::uint32_t slot) { return a.slot < slot; });
    const bool is_sum = once_per_step(found_collectives_[member.collective].kind);
    out_->members.push_back(is_sum ? narrow(sum - out_->sums.begin()) : member.lane);
  }
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

// From the first device of each other stage to that of the lowest, from there to all members. Without bytes
// where a device has all copies.
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
  const auto adds_alone = [&](DeviceId device) { return has_all_copies(*model_, model_->ties[tie], device); };
  const auto there = adds_alone(root) ? ListLeg::Kind::kArrives : ListLeg::Kind::kGather;
  for (const DeviceId sender : senders) add_leg({0, there, 0, 0}, sender, root);
  for (const DeviceId member : members) {
    add_leg({0, adds_alone(member) ? ListLeg::Kind::kLeaves : ListLeg::Kind::kReturn, 0, 0}, root, member);
  }
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
