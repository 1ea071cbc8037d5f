#include "espalier/planners/pipeline/device_row.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "espalier/base/rng.h"
#include "espalier/cost/training_times.h"
#include "espalier/planners/draft.h"

namespace espalier {
namespace {

// The place of `value` in `all`, added where it is new.
template <class Value>
std::uint32_t place_of(std::vector<Value>& all, const Value& value) {
  const auto place = static_cast<std::size_t>(std::find(all.begin(), all.end(), value) - all.begin());
  if (place == all.size()) all.push_back(value);
  return narrow(place);
}

void insert_sorted(std::vector<std::uint32_t>& sorted, std::uint32_t value) {
  const auto at = std::lower_bound(sorted.begin(), sorted.end(), value);
  if (at == sorted.end() || *at != value) sorted.insert(at, value);
}

std::uint64_t hash_of(const RunClass& run) {
  std::uint64_t hash = mix64(static_cast<std::uint64_t>(run.memory.count()));
  const auto add = [&](std::int64_t value) { hash = mix64(hash ^ static_cast<std::uint64_t>(value)); };
  add(run.replicas);
  for (const RunClass::Load& load : run.loads) add(load.compute), add(load.share);
  for (const std::uint32_t hop : run.ring) add(hop);
  return hash;
}

}  // namespace

DeviceTable::DeviceTable(const Problem& problem) : problem_(problem) {
  const Cluster& cluster = problem.cluster;
  const std::size_t count = cluster.devices().size();
  for (const DeviceKind& kind : cluster.kinds()) overheads_.push_back(problem.costs.overhead(kind.name));
  std::vector<std::size_t> in_group(cluster.groups().size(), 0);
  for (const Device& device : cluster.devices()) ++in_group[device.group.index()];
  for (const Device& device : cluster.devices()) {
    const Group& host = cluster.group(device.group);
    class_of_.push_back(place_of(
        classes_,
        {.kind = device.kind,
         .crowd = in_group[device.group.index()] > 1 ? Crowd::kCrowded : Crowd::kAlone,
         .actions = 2 * at_speed(overheads_[device.kind.index()].per_action, cluster.kind(device.kind)),
         .send = host.send,
         .receive = host.receive}));
  }
  hop_of_.reserve(count * count);
  for (std::size_t from = 0; from < count; ++from) {
    for (std::size_t to = 0; to < count; ++to) {
      const Route route = cluster.route(DeviceId(from), DeviceId(to));
      hop_of_.push_back(place_of(hops_, {route.bandwidth, route.latency, route.send, route.receive}));
    }
  }
}

Duration DeviceTable::update(KindId kind, Bytes parameters) const {
  return at_speed(update_time(overheads_[kind.index()], problem_.training.optimizer.kind, parameters),
                  problem_.cluster.kind(kind));
}

Duration RunClass::all_reduce(const DeviceTable& table, Bytes bytes) const {
  if (replicas == 1) return Duration();
  const Bytes chunk((bytes.count() + replicas - 1) / replicas);
  Duration slowest, latency;
  for (const std::uint32_t id : ring) {
    const Hop& hop = table.hops()[id];
    slowest = std::max(slowest, hop.hold(chunk));
    latency = std::max(latency, hop.latency + hop.send.of(chunk) + hop.receive.of(chunk));
  }
  const std::int64_t steps = 2 * (replicas - 1);
  const Duration limit((std::int64_t{1} << 62) / steps);  // as all_reduce_cost saturates
  return std::min(slowest, limit) * steps + std::min(latency, limit) * steps;
}

DeviceRow::DeviceRow(const DeviceTable& table, std::vector<DeviceId> devices, std::int64_t micro_batches,
                     std::size_t most_replicas, const std::vector<Duration>& times)
    : table_(table),
      devices_(std::move(devices)),
      micro_batches_(micro_batches),
      longest_(std::min({devices_.size(), static_cast<std::size_t>(micro_batches), most_replicas})) {
  class_of_.resize(devices_.size() * longest_);
  std::vector<std::uint32_t> ways;  // between neighbours
  std::vector<Members> members;     // ascending compute class
  for (std::size_t begin = 0; begin < devices_.size(); ++begin) {
    ways.clear();
    members.clear();
    Bytes memory = Bytes::max();
    for (std::size_t end = begin + 1; end <= std::min(devices_.size(), begin + longest_); ++end) {
      const DeviceId last = devices_[end - 1];
      const auto replicas = static_cast<std::int64_t>(end - begin);
      memory = std::min(memory, table.memory(last));
      add_member(table.class_of(last), times, members);
      RunClass run{
          .replicas = replicas, .share = 0, .loads = loads(members, times), .ring = {}, .memory = memory};
      for (const RunClass::Load& load : run.loads) run.share = std::max(run.share, load.share);
      if (replicas > 1) {
        insert_sorted(ways, table.hop_of(devices_[end - 2], last));
        run.ring = ways;
        insert_sorted(run.ring, table.hop_of(last, devices_[begin]));
      }
      class_of_[begin * longest_ + end - begin - 1] = number(std::move(run));
    }
  }
}

void DeviceRow::add_member(std::uint32_t compute, const std::vector<Duration>& times,
                           std::vector<Members>& run) const {
  const auto at = std::ranges::lower_bound(run, compute, {}, &Members::compute);
  if (at != run.end() && at->compute == compute) {
    ++at->count;
    return;
  }
  Members fresh{compute, 1, 0};
  for (const Members& other : run) {
    if (times.empty() || times[other.compute] == times[compute]) fresh.before += other.count;
  }
  run.insert(at, fresh);
}

std::vector<RunClass::Load> DeviceRow::loads(const std::vector<Members>& run,
                                             const std::vector<Duration>& times) {
  if (const auto known = mixtures_.find(run); known != mixtures_.end()) return known->second;
  std::vector<EqualReplicas> groups;
  std::vector<std::size_t> group_of;
  for (const Members& members : run) {
    const Duration time = times.empty() ? Duration() : times[members.compute];
    group_of.push_back(add_replicas(groups, time, members.count));
  }
  deal_evenly(micro_batches_, groups);
  std::vector<RunClass::Load> loads;
  for (std::size_t i = 0; i < run.size(); ++i) {
    loads.push_back({run[i].compute, groups[group_of[i]].share(run[i].before)});
  }
  mixtures_.emplace(run, loads);
  return loads;
}

std::uint32_t DeviceRow::number(RunClass&& run) {
  const std::uint64_t hash = hash_of(run);
  auto at = std::lower_bound(by_hash_.begin(), by_hash_.end(), std::pair(hash, std::uint32_t{0}));
  for (; at != by_hash_.end() && at->first == hash; ++at) {
    if (classes_[at->second] == run) return at->second;
  }
  const std::uint32_t fresh = narrow(classes_.size());
  by_hash_.insert(at, {hash, fresh});
  classes_.push_back(std::move(run));
  return fresh;
}

std::uint32_t DeviceRow::class_of_single(DeviceId device) {
  return number({.replicas = 1,
                 .share = micro_batches_,
                 .loads = {{table_.class_of(device), micro_batches_}},
                 .ring = {},
                 .memory = table_.memory(device)});
}

std::vector<std::vector<DeviceId>> device_rows(const Cluster& cluster, const std::vector<DeviceId>& devices,
                                               const std::vector<Duration>& work) {
  const auto time_on = [&](DeviceId id) { return work[cluster.device(id).kind.index()]; };
  const auto memory_of = [&](DeviceId id) { return cluster.device(id).memory; };
  std::map<GroupId, std::vector<DeviceId>> hosts;
  for (const DeviceId id : devices) hosts[cluster.device(id).group].push_back(id);

  // Hosts by the first of their devices in `before`, each host's devices in that order.
  const auto arranged = [&](const auto& before) {
    std::vector<std::vector<DeviceId>> rows;
    for (auto [group, members] : hosts) {
      std::stable_sort(members.begin(), members.end(), before);
      rows.push_back(std::move(members));
    }
    std::stable_sort(rows.begin(), rows.end(), [&](const auto& a, const auto& b) {
      if (before(a.front(), b.front()) || before(b.front(), a.front())) return before(a.front(), b.front());
      return a.front() < b.front();
    });
    std::vector<DeviceId> row;
    for (const auto& members : rows) row.insert(row.end(), members.begin(), members.end());
    return row;
  };
  std::vector<std::vector<DeviceId>> rows{devices};
  const auto add = [&](std::vector<DeviceId> row) {
    if (std::find(rows.begin(), rows.end(), row) == rows.end()) rows.push_back(std::move(row));
  };
  const bool alike = std::all_of(devices.begin(), devices.end(), [&](DeviceId id) {
    return cluster.device(id).kind == cluster.device(devices.front()).kind &&
           memory_of(id) == memory_of(devices.front());
  });
  add(arranged([](DeviceId a, DeviceId b) { return a < b; }));
  if (alike) return rows;
  add(arranged([&](DeviceId a, DeviceId b) { return time_on(a) < time_on(b); }));
  add(arranged([&](DeviceId a, DeviceId b) { return time_on(a) > time_on(b); }));
  add(arranged([&](DeviceId a, DeviceId b) { return memory_of(a) > memory_of(b); }));
  return rows;
}

std::vector<DeviceId> unpinned_devices(const Problem& problem) {
  std::set<DeviceId> pinned;
  const auto pins = resolve_pins(problem.graph, problem.pins);
  for (std::size_t i = 0; i < pins.size(); ++i) {
    if (pins[i] && !problem.graph.operators()[i].duplicable) pinned.insert(*pins[i]);
  }
  std::vector<DeviceId> result;
  for (std::size_t d = 0; d < problem.cluster.devices().size(); ++d) {
    if (!pinned.contains(DeviceId(d))) result.push_back(DeviceId(d));
  }
  return result;
}

}  // namespace espalier
