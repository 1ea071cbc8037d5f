// Moves that change who computes a stage.

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "espalier/planners/joint/moves.h"

namespace espalier::joint {
namespace {

Proposal on_devices(const Site& site, std::size_t stage, std::vector<DeviceId> devices) {
  Proposal plan = site.plan;
  plan.stages[stage].devices = std::move(devices);
  plan.stages[stage] = settled(site.space, std::move(plan.stages[stage]), plan.micro_batch);
  return plan;
}

// Everything that stands on `a` comes to stand on `b`, and the other way round.
Proposal exchanged(const Site& site, const std::map<DeviceId, DeviceId>& to) {
  Proposal plan = site.plan;
  for (StageDraft& stage : plan.stages) {
    bool changes = false;
    for (DeviceId& device : stage.devices) {
      const auto at = to.find(device);
      if (at == to.end()) continue;
      device = at->second;
      changes = true;
    }
    if (changes && stage.locked_as.empty()) stage = settled(site.space, std::move(stage), plan.micro_batch);
  }
  return plan;
}

bool has(const StageDraft& stage, DeviceId device) {
  return std::find(stage.devices.begin(), stage.devices.end(), device) != stage.devices.end();
}

bool is_alike(const Cluster& cluster, DeviceId a, DeviceId b) {
  const Device& first = cluster.device(a);
  const Device& second = cluster.device(b);
  return first.kind == second.kind && first.group == second.group && first.memory == second.memory &&
         !cluster.has_own_link(a) && !cluster.has_own_link(b);
}

// A stage's micro-batches dealt so that its devices, with what else they have to do, end as early as can be.
std::optional<Proposal> balanced(const Site& site, Proposal plan, std::size_t s) {
  StageDraft& stage = plan.stages[s];
  const Cluster& cluster = site.space.problem().cluster;
  stage.weights.assign(stage.devices.size(), 1);
  Proposal others = plan;
  others.stages[s].operators = OperatorSet();
  const Load load = load_of(site.space, others);
  std::vector<Duration> ends, each;
  for (const DeviceId device : stage.devices) {
    const KindId kind = cluster.device(device).kind;
    ends.push_back(load.of_device[device.index()]);
    each.push_back(site.space.work(stage, kind, plan.micro_batch));
  }
  std::vector<std::uint32_t> counts(stage.devices.size(), 0);
  for (std::int64_t j = site.space.problem().training.batch.count() / plan.micro_batch.count(); j > 0; --j) {
    std::size_t first = 0;
    for (std::size_t r = 1; r < ends.size(); ++r) {
      if (ends[r] + each[r] < ends[first] + each[first]) first = r;
    }
    ends[first] += each[first];
    ++counts[first];
  }
  if (std::find(counts.begin(), counts.end(), 0U) != counts.end()) return std::nullopt;
  stage.weights = std::move(counts);
  return plan;
}

// A stage on other devices: one more, one less, one in place of another.
void change_replicas(const Site& site, std::size_t s, std::vector<Proposal>& moves) {
  const StageDraft& stage = site.plan.stages[s];
  const bool one_only = site.space.has_writer(stage.operators);
  for (std::size_t t = 0; t < site.devices.size() && t < kTargets; ++t) {
    const DeviceId device = site.devices[t];
    if (has(stage, device)) continue;
    if (!one_only) {
      std::vector<DeviceId> more = stage.devices;
      more.push_back(device);
      Proposal plan = on_devices(site, s, std::move(more));
      if (auto even = balanced(site, plan, s)) moves.push_back(std::move(*even));
      moves.push_back(std::move(plan));
    }
    for (std::size_t r = 0; r < stage.devices.size() && r < kTargets; ++r) {
      std::vector<DeviceId> others = stage.devices;
      others[r] = device;
      moves.push_back(on_devices(site, s, std::move(others)));
    }
  }
  if (stage.devices.size() < 2) return;
  for (const bool last : {true, false}) {
    std::vector<DeviceId> fewer = stage.devices;
    fewer.erase(last ? fewer.end() - 1 : fewer.begin());
    moves.push_back(on_devices(site, s, std::move(fewer)));
  }
}

// All of them dealt anew; one micro-batch of the replica on the busiest device goes to another.
void shift_shares(const Site& site, std::size_t s, std::vector<Proposal>& moves) {
  const StageDraft& stage = site.plan.stages[s];
  const std::size_t replicas = stage.devices.size();
  if (replicas < 2) return;
  if (auto even = balanced(site, site.plan, s)) moves.push_back(std::move(*even));
  const auto micro_batches =
      static_cast<std::uint32_t>(site.space.problem().training.batch.count() / site.plan.micro_batch.count());
  const std::vector<std::uint32_t> weights =
      stage.weights.empty() ? std::vector<std::uint32_t>(replicas, 1) : stage.weights;
  std::vector<std::uint32_t> counts;
  for (const auto& share : deal_micro_batches(micro_batches, weights)) counts.push_back(narrow(share.size()));
  if (std::find(counts.begin(), counts.end(), 0U) != counts.end()) return;
  std::vector<std::size_t> by_load(replicas);
  std::iota(by_load.begin(), by_load.end(), std::size_t{0});
  std::stable_sort(by_load.begin(), by_load.end(), [&](std::size_t a, std::size_t b) {
    return site.load.of_device[stage.devices[a].index()] < site.load.of_device[stage.devices[b].index()];
  });
  for (std::size_t from = replicas; from-- > 0 && replicas - from <= kTargets / 2;) {
    for (std::size_t to = 0; to < replicas && to < kTargets; ++to) {
      const std::size_t gives = by_load[from], takes = by_load[to];
      if (gives == takes || counts[gives] < 2) continue;
      Proposal plan = site.plan;
      plan.stages[s].weights = counts;
      --plan.stages[s].weights[gives];
      ++plan.stages[s].weights[takes];
      moves.push_back(std::move(plan));
    }
  }
}

// A busy stage takes a replica's device from another.
void take_replicas(const Site& site, std::size_t s, std::vector<Proposal>& moves) {
  if (site.space.has_writer(site.plan.stages[s].operators)) return;
  for (const std::size_t other : site.stages) {
    const std::vector<DeviceId>& devices = site.plan.stages[other].devices;
    if (other == s || devices.size() < 2 || has(site.plan.stages[s], devices.back())) continue;
    std::vector<DeviceId> more = site.plan.stages[s].devices;
    more.push_back(devices.back());
    Proposal plan = on_devices(site, s, std::move(more));
    plan.stages[other].devices.pop_back();
    plan.stages[other] = settled(site.space, std::move(plan.stages[other]), plan.micro_batch);
    moves.push_back(std::move(plan));
  }
}

void exchange_devices(const Site& site, std::size_t s, std::vector<Proposal>& moves) {
  const Cluster& cluster = site.space.problem().cluster;
  const StageDraft& stage = site.plan.stages[s];
  std::size_t tried = 0;
  for (std::size_t i = site.stages.size(); i-- > 0 && tried < 2 * kTargets;) {
    const std::size_t other = site.stages[i];
    if (other == s) continue;
    const DeviceId mine = stage.devices.front(), theirs = site.plan.stages[other].devices.front();
    if (mine == theirs || is_alike(cluster, mine, theirs)) continue;
    ++tried;
    moves.push_back(exchanged(site, {{mine, theirs}, {theirs, mine}}));
    Proposal whole = site.plan;  // all of both
    std::swap(whole.stages[s].devices, whole.stages[other].devices);
    for (const std::size_t each : {s, other}) {
      whole.stages[each] = settled(site.space, std::move(whole.stages[each]), whole.micro_batch);
    }
    moves.push_back(std::move(whole));
  }
}

// Hosts of equal size whose devices are of other kinds, or which lie elsewhere.
void exchange_hosts(const Site& site, std::vector<Proposal>& moves) {
  const Cluster& cluster = site.space.problem().cluster;
  std::map<GroupId, std::vector<DeviceId>> hosts;
  for (std::size_t d = 0; d < cluster.devices().size(); ++d) {
    hosts[cluster.devices()[d].group].push_back(DeviceId(d));
  }
  std::size_t tried = 0;
  for (auto a = hosts.begin(); a != hosts.end(); ++a) {
    for (auto b = std::next(a); b != hosts.end() && tried < 2 * kTargets; ++b) {
      if (a->second.size() != b->second.size() || a->second.size() < 2) continue;
      ++tried;
      std::map<DeviceId, DeviceId> to;
      for (std::size_t d = 0; d < a->second.size(); ++d) {
        to[a->second[d]] = b->second[d];
        to[b->second[d]] = a->second[d];
      }
      moves.push_back(exchanged(site, to));
    }
  }
}

}  // namespace

std::vector<Proposal> device_moves(const Site& site) {
  std::vector<Proposal> moves;
  for (std::size_t i = 0; i < site.stages.size() && i < kSources; ++i) {
    change_replicas(site, site.stages[i], moves);
    shift_shares(site, site.stages[i], moves);
    take_replicas(site, site.stages[i], moves);
    exchange_devices(site, site.stages[i], moves);
  }
  if (!site.any_fixed) exchange_hosts(site, moves);
  return moves;
}

}  // namespace espalier::joint
