#include "espalier/planners/joint/moves.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <span>
#include <tuple>

#include "espalier/base/shuffle.h"

namespace espalier::joint {

Site::Site(const Space& s, const Proposal& p)
    : space(s), plan(p), load(load_of(s, p)), neighbours(neighbours_of(s, p)) {
  const Cluster& cluster = space.problem().cluster;
  std::vector<Duration> busiest(plan.stages.size());
  std::set<DeviceId> taken;  // by stages that stay as they are
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    for (const DeviceId device : plan.stages[i].devices) {
      busiest[i] = std::max(busiest[i], load.of_device[device.index()]);
      if (is_fixed(i)) taken.insert(device);
    }
    if (!is_fixed(i)) stages.push_back(i);
    any_fixed = any_fixed || is_fixed(i);
  }
  std::stable_sort(stages.begin(), stages.end(), [&](std::size_t a, std::size_t b) {
    return std::tuple(busiest[b], load.of_stage[b]) < std::tuple(busiest[a], load.of_stage[a]);
  });
  for (std::size_t d = 0; d < cluster.devices().size(); ++d) {
    if (!taken.contains(DeviceId(d))) free.push_back(DeviceId(d));
  }
  std::stable_sort(free.begin(), free.end(), [&](DeviceId a, DeviceId b) {
    return load.of_device[a.index()] < load.of_device[b.index()];
  });
  std::set<std::pair<KindId, GroupId>> idle;
  for (const DeviceId d : free) {
    const Device& device = cluster.device(d);
    if (load.of_device[d.index()] == Duration() && !cluster.has_own_link(d) &&
        !idle.insert({device.kind, device.group}).second) {
      continue;
    }
    devices.push_back(d);
  }
}

Site::Site(const Space& s, const Proposal& p, Rng& rng) : Site(s, p) {
  const auto draw = [&](auto& from, std::size_t count) {
    draw_to_front(std::span(from), count, rng);
    from.resize(std::min(from.size(), count));
  };
  draw(stages, 2);
  draw(devices, 2);
}

KindId Site::kind_of(const StageDraft& stage) const {
  return space.problem().cluster.device(stage.devices.front()).kind;
}

std::vector<Part> Site::parts(std::size_t stage) const {
  const StageDraft& draft = plan.stages[stage];
  return parts_of(space, draft.operators, kind_of(draft), plan.micro_batch);
}

StageDraft settled(const Space& space, StageDraft stage, BatchSize micro_batch) {
  stage.weights.clear();
  const auto divides = [&](std::uint32_t degree) {
    return degree <= stage.degree && stage.devices.size() % degree == 0;
  };
  stage.degree = *std::ranges::find_if(space.degrees().rbegin(), space.degrees().rend(), divides);
  const Cluster& cluster = space.problem().cluster;
  const KindId first = cluster.device(stage.devices.front()).kind;
  if (std::all_of(stage.devices.begin(), stage.devices.end(),
                  [&](DeviceId device) { return cluster.device(device).kind == first; })) {
    return stage;
  }
  std::vector<Duration> work;
  for (std::size_t r = 0; r < stage.replicas(); ++r) {
    work.push_back(space.work_of_replica(stage, r, micro_batch));
  }
  const Duration most = *std::max_element(work.begin(), work.end());
  for (const Duration each : work) {  // how many times as fast as the slowest, in sixteenths
    const std::int64_t speed = each > Duration() ? 16 * most.count() / each.count() : 16;
    stage.weights.push_back(static_cast<std::uint32_t>(std::clamp<std::int64_t>(speed, 1, 1 << 16)));
  }
  return stage;
}

std::optional<std::vector<DeviceId>> devices_beside(const Site& site, DeviceId first,
                                                    std::span<const DeviceId> but, std::size_t count) {
  const Cluster& cluster = site.space.problem().cluster;
  const Device& at = cluster.device(first);
  std::vector<DeviceId> beside;
  for (const bool same_host : {true, false}) {
    for (const DeviceId device : site.free) {
      if (beside.size() == count) break;
      const Device& other = cluster.device(device);
      if (device == first || other.kind != at.kind || (other.group == at.group) != same_host) continue;
      if (std::ranges::find(but, device) == but.end()) beside.push_back(device);
    }
  }
  return beside.size() == count ? std::optional(std::move(beside)) : std::nullopt;
}

std::optional<std::vector<DeviceId>> group_with(const Site& site, const StageDraft& stage, DeviceId first) {
  auto group = devices_beside(site, first, stage.devices, stage.degree - 1);
  if (group) group->insert(group->begin(), first);
  return group;
}

Proposal with_micro_batch(const Space& space, Proposal plan, BatchSize micro_batch) {
  if (plan.micro_batch == micro_batch) return plan;
  plan.micro_batch = micro_batch;
  for (StageDraft& stage : plan.stages) stage = settled(space, std::move(stage), micro_batch);
  return plan;
}

Proposal without_stage(Proposal plan, std::size_t stage) {
  plan.stages.erase(plan.stages.begin() + static_cast<std::ptrdiff_t>(stage));
  for (StageDraft& each : plan.stages) {
    std::erase(each.after, stage);
    for (std::size_t& before : each.after) before -= before > stage ? 1 : 0;
  }
  return plan;
}

Moves moves_of(const Site& site, OrdersMay may) {
  Moves result;
  std::set<std::uint64_t> met{signature_of(site.plan)};
  const auto add = [&](std::vector<Proposal> moves) {
    for (Proposal& move : moves) {
      if (met.insert(signature_of(move)).second) result.all.push_back(std::move(move));
    }
  };
  add(border_moves(site));
  add(part_moves(site));
  add(device_moves(site));
  add(group_moves(site));
  add(merge_moves(site));
  add(split_moves(site));
  result.orders_begin = result.all.size();
  add(order_moves(site, may));
  result.orders_end = result.all.size();
  add(recompute_moves(site));
  return result;
}

}  // namespace espalier::joint
