#include "espalier/planners/placement/max_load.h"

#include <algorithm>
#include <map>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/planners/placement/memory_ledger.h"
#include "espalier/planners/placement/repair.h"

//   paper                       here
//   acceleratorLatency (ms)     nanoseconds of a task on the fastest kind
//   cpuLatency                  on the other kind
//   cost(u)                     nanoseconds that all outputs of a task hold the slowest way
//   size                        MemoryLedger::alone of a unit, at its first task
//   colour                      the unit

namespace espalier::placement {
namespace {

constexpr std::size_t kMostTasks = 20'000;
constexpr double kCannot = 1e18;  // ns: longer than any task

// Devices of the fastest kind, and of the next.
struct Sorts {
  std::vector<DeviceId> accelerators, others;
};

Sorts sorts_of(const Instance& instance) {
  std::map<KindId, std::vector<DeviceId>> of_kind;
  for (std::size_t d = 0; d < instance.devices(); ++d) of_kind[instance.kind[d]].push_back(DeviceId(d));
  std::vector<std::pair<std::int64_t, KindId>> order;
  for (const auto& [kind, devices] : of_kind) {
    std::int64_t all = 0;
    for (std::size_t t = 0; t < instance.tasks(); ++t) {
      const std::span<const DeviceId> allowed = instance.allowed[instance.unit[t].index()];
      const bool may = std::binary_search(allowed.begin(), allowed.end(), devices.front());
      all += instance.time_on(TaskId(t), may ? devices.front() : allowed.front()).count();
    }
    order.emplace_back(all, kind);
  }
  std::sort(order.begin(), order.end());
  Sorts sorts{of_kind[order.front().second], {}};
  if (order.size() > 1) sorts.others = of_kind[order[1].second];
  return sorts;
}

std::optional<std::int64_t> slowest_bandwidth(const Instance& instance,
                                              const std::vector<DeviceId>& devices) {
  std::optional<std::int64_t> slowest;
  for (const DeviceId from : devices) {
    for (const DeviceId to : devices) {
      const auto& bandwidth = instance.way(from, to).bandwidth;
      if (from != to && bandwidth && (!slowest || *bandwidth < *slowest)) slowest = bandwidth;
    }
  }
  return slowest;
}

std::vector<DeviceId> all_devices(const Instance& instance) {
  std::vector<DeviceId> all;
  for (std::size_t d = 0; d < instance.devices(); ++d) all.push_back(DeviceId(d));
  return all;
}

class ProfileOfInstance {
 public:
  ProfileOfInstance(const Instance& instance, const Sorts& sorts)
      : instance_(instance),
        sorts_(sorts),
        bandwidth_(slowest_bandwidth(
            instance, sorts.accelerators.size() > 1 ? sorts.accelerators : all_devices(instance))) {}

  MsrProfile make() const {
    MsrProfile profile;
    profile.file = "instance";
    profile.accelerators = static_cast<std::int64_t>(sorts_.accelerators.size());
    profile.cpus = static_cast<std::int64_t>(sorts_.others.size());
    Bytes memory = Bytes::max();
    for (const DeviceId device : sorts_.accelerators) {
      memory = std::min(memory, instance_.memory[device.index()]);
    }
    profile.memory = static_cast<double>(memory.count());
    const MemoryLedger ledger(instance_);
    for (std::size_t t = 0; t < instance_.tasks(); ++t) {
      const UnitId unit = instance_.unit[t];
      const bool first = instance_.tasks_of[unit.index()].front() == TaskId(t);
      MsrProfile::Node node;
      node.id = static_cast<std::int64_t>(t);
      node.on_accelerator = may_stand(unit, sorts_.accelerators);
      node.backward = instance_.pass[t] == Pass::kBackward;
      node.accelerator = time(TaskId(t), sorts_.accelerators);
      node.cpu = time(TaskId(t), sorts_.others);
      node.bytes = first ? static_cast<double>(ledger.alone(unit).count()) : 0;
      node.colour = static_cast<std::int64_t>(unit.index());
      profile.nodes.push_back(std::move(node));
    }
    add_edges(profile);
    return profile;
  }

 private:
  bool may_stand(UnitId unit, const std::vector<DeviceId>& devices) const {
    const std::span<const DeviceId> allowed = instance_.allowed[unit.index()];
    return std::any_of(devices.begin(), devices.end(), [&](DeviceId device) {
      return std::binary_search(allowed.begin(), allowed.end(), device);
    });
  }

  double time(TaskId task, const std::vector<DeviceId>& devices) const {
    if (!may_stand(instance_.unit[task.index()], devices)) return kCannot;
    return static_cast<double>(instance_.time_on(task, devices.front()).count());
  }

  // From each task to whoever reads of it; all edges of a task have its cost.
  void add_edges(MsrProfile& profile) const {
    for (std::size_t t = 0; t < instance_.tasks(); ++t) {
      Bytes sent;
      std::vector<std::size_t> readers;
      for (const ValueId value : instance_.produces[t]) {
        for (const TaskId reader : instance_.readers[value.index()]) readers.push_back(reader.index());
        if (!instance_.readers[value.index()].empty()) sent += instance_.bytes[value.index()];
      }
      std::sort(readers.begin(), readers.end());
      readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
      const double cost = bandwidth_ ? static_cast<double>(transfer_time(sent, *bandwidth_).count()) : 0;
      for (const std::size_t reader : readers) {
        // The model has no edge from backward to forward; order within a unit is its own.
        const bool back = profile.nodes[t].backward && !profile.nodes[reader].backward;
        if (!back && instance_.unit[t] != instance_.unit[reader]) {
          profile.edges.push_back({t, reader, cost, static_cast<double>(sent.count())});
        }
      }
    }
  }

  const Instance& instance_;
  const Sorts& sorts_;
  const std::optional<std::int64_t> bandwidth_;  // none: messages are free
};

}  // namespace

Placed max_load_placement(const Instance& instance, literal::MaxLoadSpace space) {
  if (instance.tasks() > kMostTasks) {
    Placed placed;
    placed.why = "there are " + std::to_string(instance.tasks()) + " tasks; this placer takes " +
                 std::to_string(kMostTasks) + " at most";
    placed.unsupported = true;
    return placed;
  }
  const Sorts sorts = sorts_of(instance);
  const MsrProfile profile = ProfileOfInstance(instance, sorts).make();
  const literal::MaxLoadOptions options{.space = space};
  literal::MaxLoadResult result = literal::max_load(profile, options);
  if (!result.found()) {  // what does not fit at first is repaired, as where a unit may not stand
    result = literal::max_load(profile, {.space = space, .memory = 1e30});
  }
  Placed placed;
  placed.stats.states = result.pairs;
  if (!result.found()) {  // memory is not what lacks
    placed.why = result.why;
    placed.unsupported = true;
    return placed;
  }
  Assignment assignment(instance.units());
  std::size_t accelerator = 0, other = 0;
  for (const literal::MaxLoadDevice& device : result.devices) {
    const DeviceId where = device.accelerator ? sorts.accelerators[accelerator++] : sorts.others[other++];
    for (const std::size_t node : device.nodes) {
      const std::span<const DeviceId> allowed = instance.allowed[instance.unit[node].index()];
      const bool may = std::binary_search(allowed.begin(), allowed.end(), where);
      assignment[instance.unit[node].index()] = may ? where : allowed.front();
    }
  }
  Repaired repaired = repair(instance, std::move(assignment));
  placed.assignment = std::move(repaired.assignment);
  placed.why = std::move(repaired.why);
  placed.lacks = std::move(repaired.lacks);
  placed.stats.states += repaired.states;
  return placed;
}

}  // namespace espalier::placement
