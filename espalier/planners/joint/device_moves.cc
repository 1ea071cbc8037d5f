// Moves that change who computes a stage.

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <span>

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

// That its devices have to do, whatever it is.
Duration load_of_replica(const Load& load, const StageDraft& stage, std::size_t replica) {
  Duration busiest;
  for (const DeviceId device : stage.group(replica)) {
    busiest = std::max(busiest, load.of_device[device.index()]);
  }
  return busiest;
}

// A stage's micro-batches dealt so that its devices, with what else they have to do, end as early as can be.
std::optional<Proposal> balanced(const Site& site, Proposal plan, std::size_t s) {
  StageDraft& stage = plan.stages[s];
  const std::size_t replicas = stage.replicas();
  stage.weights.assign(replicas, 1);
  Proposal others = plan;
  others.stages[s].operators = OperatorSet();
  const Load load = load_of(site.space, others);
  std::vector<Duration> ends, each;
  for (std::size_t r = 0; r < replicas; ++r) {
    ends.push_back(load_of_replica(load, stage, r));
    each.push_back(site.space.work_of_replica(stage, r, plan.micro_batch));
  }
  std::vector<std::uint32_t> counts(replicas, 0);
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

// A stage on other devices: a replica more, one less, one in place of another.
void change_replicas(const Site& site, std::size_t s, std::vector<Proposal>& moves) {
  const StageDraft& stage = site.plan.stages[s];
  const bool one_only = site.space.has_writer(stage.operators);
  for (std::size_t t = 0; t < site.devices.size() && t < kTargets; ++t) {
    if (has(stage, site.devices[t])) continue;
    const auto group = group_with(site, stage, site.devices[t]);
    if (!group) continue;
    if (!one_only) {
      std::vector<DeviceId> more = stage.devices;
      more.insert(more.end(), group->begin(), group->end());
      Proposal plan = on_devices(site, s, std::move(more));
      if (auto even = balanced(site, plan, s)) moves.push_back(std::move(*even));
      moves.push_back(std::move(plan));
    }
    for (std::size_t r = 0; r < stage.replicas() && r < kTargets; ++r) {
      std::vector<DeviceId> others = stage.devices;
      std::copy(group->begin(), group->end(), others.begin() + static_cast<std::ptrdiff_t>(r * stage.degree));
      moves.push_back(on_devices(site, s, std::move(others)));
    }
  }
  if (stage.replicas() < 2) return;
  const std::span<const DeviceId> all = stage.devices;
  for (const std::span<const DeviceId> fewer :
       {all.first(all.size() - stage.degree), all.subspan(stage.degree)}) {
    moves.push_back(on_devices(site, s, {fewer.begin(), fewer.end()}));
  }
}

// All of them dealt anew; one micro-batch of the replica on the busiest device goes to another.
void shift_shares(const Site& site, std::size_t s, std::vector<Proposal>& moves) {
  const StageDraft& stage = site.plan.stages[s];
  const std::size_t replicas = stage.replicas();
  if (replicas < 2) return;
  if (auto even = balanced(site, site.plan, s)) moves.push_back(std::move(*even));
  const auto micro_batches =
      static_cast<std::uint32_t>(site.space.problem().training.batch.count() / site.plan.micro_batch.count());
  const std::vector<std::uint32_t> weights =
      stage.weights.empty() ? std::vector<std::uint32_t>(replicas, 1) : stage.weights;
  const std::vector<std::uint32_t> counts = share_sizes(micro_batches, weights);
  if (std::find(counts.begin(), counts.end(), 0U) != counts.end()) return;
  std::vector<std::size_t> by_load(replicas);
  std::iota(by_load.begin(), by_load.end(), std::size_t{0});
  std::stable_sort(by_load.begin(), by_load.end(), [&](std::size_t a, std::size_t b) {
    return load_of_replica(site.load, stage, a) < load_of_replica(site.load, stage, b);
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

// A busy stage takes the devices of a replica from another.
void take_replicas(const Site& site, std::size_t s, std::vector<Proposal>& moves) {
  const StageDraft& stage = site.plan.stages[s];
  if (site.space.has_writer(stage.operators)) return;
  for (const std::size_t other : site.stages) {
    const std::span<const DeviceId> devices = site.plan.stages[other].devices;
    if (other == s || devices.size() <= stage.degree) continue;
    const std::span<const DeviceId> taken = devices.last(stage.degree);
    if (std::ranges::any_of(taken, [&](DeviceId device) { return has(stage, device); })) continue;
    std::vector<DeviceId> more = stage.devices;
    more.insert(more.end(), taken.begin(), taken.end());
    Proposal plan = on_devices(site, s, std::move(more));
    plan.stages[other].devices.resize(devices.size() - stage.degree);
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

// In groups of another size: on its own devices, and as many replicas on more or fewer.
void change_groups(const Site& site, std::size_t s, std::uint32_t degree, std::vector<Proposal>& moves) {
  const StageDraft& stage = site.plan.stages[s];
  const auto in_groups = [&](std::vector<DeviceId> devices) {
    Proposal plan = site.plan;
    plan.stages[s].degree = degree;
    plan.stages[s].devices = std::move(devices);
    plan.stages[s] = settled(site.space, std::move(plan.stages[s]), plan.micro_batch);
    moves.push_back(std::move(plan));
  };
  if (stage.devices.size() % degree == 0) in_groups(stage.devices);
  const std::size_t kept = std::min(degree, stage.degree);  // of a replica's devices
  std::vector<DeviceId> devices, known = stage.devices;
  for (std::size_t r = 0; r < stage.replicas(); ++r) {
    const std::span<const DeviceId> now = stage.group(r);
    const auto more = devices_beside(site, now.front(), known, degree - kept);
    if (!more) return;
    devices.insert(devices.end(), now.begin(), now.begin() + static_cast<std::ptrdiff_t>(kept));
    for (std::vector<DeviceId>* to : {&devices, &known}) to->insert(to->end(), more->begin(), more->end());
  }
  in_groups(std::move(devices));
}

}  // namespace

std::vector<Proposal> group_moves(const Site& site) {
  std::vector<Proposal> moves;
  const std::vector<std::uint32_t>& degrees = site.space.degrees();
  if (degrees.size() < 2) return moves;
  for (std::size_t i = 0; i < site.stages.size() && i < kSources; ++i) {
    const std::size_t s = site.stages[i];
    const auto at = std::ranges::find(degrees, site.plan.stages[s].degree);
    if (at != degrees.begin()) change_groups(site, s, *std::prev(at), moves);
    if (std::next(at) != degrees.end()) change_groups(site, s, *std::next(at), moves);
  }
  for (const std::uint32_t degree : degrees) {
    Proposal plan = site.plan;
    for (const std::size_t s : site.stages) {
      if (plan.stages[s].devices.size() % degree != 0) continue;
      plan.stages[s].degree = degree;
      plan.stages[s] = settled(site.space, std::move(plan.stages[s]), plan.micro_batch);
    }
    moves.push_back(std::move(plan));
  }
  return moves;
}

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
