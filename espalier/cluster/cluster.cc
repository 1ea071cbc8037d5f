#include "espalier/cluster/cluster.h"

#include <algorithm>
#include <unordered_set>

#include "espalier/base/check.h"
#include "espalier/base/words.h"

namespace espalier {
namespace {

// Members of groups: the devices, then every group but the root.
LinkIndex link_of(std::size_t member, bool down) {
  return static_cast<LinkIndex>(2 * member + (down ? 1 : 0));
}

class Checker {
 public:
  explicit Checker(const ClusterParts& parts) : parts_(parts) {}

  std::vector<std::string> run() {
    check_names();
    for (const DeviceKind& kind : parts_.kinds) check_kind(kind);
    check_tree();
    for (const Group& group : parts_.groups) check_group(group);
    if (parts_.devices.empty()) report("the cluster has no device");
    for (const Device& device : parts_.devices) check_device(device);
    return std::move(violations_);
  }

 private:
  void report(std::string text) { violations_.push_back(std::move(text)); }

  void check_names() {
    std::unordered_set<std::string> kinds;
    for (const DeviceKind& kind : parts_.kinds) {
      if (kind.name.empty()) report("a device kind has no name");
      if (!is_utf8(kind.name)) report("the name of a device kind is not UTF-8");
      if (!kinds.insert(kind.name).second) report("device kind '" + kind.name + "' stands twice");
    }
    std::unordered_set<std::string> members;
    const auto add = [&](const std::string& name) {
      if (name.empty()) report("a group or device has no name");
      if (!is_utf8(name)) report("the name of a group or device is not UTF-8");
      if (!members.insert(name).second) report("the name '" + name + "' stands twice");
    };
    for (const Group& group : parts_.groups) add(group.name);
    for (const Device& device : parts_.devices) add(device.name);
  }

  void check_kind(const DeviceKind& kind) {
    const auto positive = [&](const char* what, double value) {
      if (!(value > 0)) report("device kind '" + kind.name + "': " + what + " must be positive");
      if (value > kMaxRate) report("device kind '" + kind.name + "': " + what + " must be at most 1e30");
    };
    positive("memory", static_cast<double>(kind.memory.count()));
    positive("f32", kind.flops_f32);
    positive("f16", kind.flops_f16);
    if (kind.flops_tf32) positive("tf32", *kind.flops_tf32);
    if (kind.flops_bf16) positive("bf16", *kind.flops_bf16);
    positive("memory bandwidth", static_cast<double>(kind.memory_bandwidth));
    positive("the number of multiprocessors", kind.multiprocessors);
    positive("speed", kind.speed);
    if (kind.multiprocessors > kMaxMultiprocessors) {
      report("device kind '" + kind.name + "' has more than a million multiprocessors");
    }
    if (kind.launch_overhead < Duration()) {
      report("device kind '" + kind.name + "': the launch overhead is negative");
    }
  }

  void check_tree() {
    if (parts_.groups.empty()) report("the cluster has no group");
    for (std::size_t i = 0; i < parts_.groups.size(); ++i) {
      const Group& group = parts_.groups[i];
      if (i == 0 && group.parent) report("group '" + group.name + "' is the first, so it must be the root");
      if (i > 0 && !group.parent)
        report("group '" + group.name + "' has no parent: only the first is a root");
      if (i > 0 && group.parent && group.parent->index() >= i) {
        report("group '" + group.name + "' stands before its parent");
      }
    }
  }

  void check_group(const Group& group) {
    if (group.bandwidth && *group.bandwidth <= 0)
      report("group '" + group.name + "': bandwidth must be positive");
    const bool negative = group.latency < Duration() || group.send.fixed < Duration() ||
                          group.receive.fixed < Duration() || group.send.picoseconds_per_byte < 0 ||
                          group.receive.picoseconds_per_byte < 0;
    if (negative) report("group '" + group.name + "' has a negative time");
  }

  void check_device(const Device& device) {
    if (device.kind.index() >= parts_.kinds.size()) {
      report("device '" + device.name + "': there is no kind " + std::to_string(device.kind.index()));
    }
    if (device.group.index() >= parts_.groups.size()) {
      report("device '" + device.name + "': there is no group " + std::to_string(device.group.index()));
    }
    if (device.memory <= Bytes()) report("device '" + device.name + "': memory must be positive");
  }

  const ClusterParts& parts_;
  std::vector<std::string> violations_;
};

}  // namespace

std::vector<std::string> check_cluster(const ClusterParts& parts) {
  return Checker(parts).run();
}

Duration EndpointCost::of(Bytes bytes) const {
  __extension__ using Wide = __int128;
  constexpr Wide kLimit = Wide{1} << 60;  // both ends and a latency still add up
  const Wide variable = (static_cast<Wide>(bytes.count()) * picoseconds_per_byte + 999) / 1000;
  return Duration(static_cast<std::int64_t>(std::min<Wide>(kLimit, variable + fixed.count())));
}

Cluster::Cluster(ClusterParts parts) : parts_(std::move(parts)) {
  if (const auto violations = check_cluster(parts_); !violations.empty()) throw InputError(violations[0]);
  depth_.assign(parts_.groups.size(), 0);
  for (std::size_t i = 1; i < parts_.groups.size(); ++i) {
    depth_[i] = depth_[parts_.groups[i].parent->index()] + 1;
  }
}

std::optional<DeviceId> Cluster::find_device(std::string_view name) const {
  for (std::size_t i = 0; i < parts_.devices.size(); ++i) {
    if (parts_.devices[i].name == name) return DeviceId(i);
  }
  return std::nullopt;
}

GroupId Cluster::common_group(DeviceId a, DeviceId b) const {
  GroupId x = device(a).group;
  GroupId y = device(b).group;
  while (x != y) {
    if (depth_[x.index()] >= depth_[y.index()]) {
      x = *group(x).parent;
    } else {
      y = *group(y).parent;
    }
  }
  return x;
}

Route Cluster::route(DeviceId from, DeviceId to) const {
  Route route;
  if (from == to) return route;
  const GroupId top = common_group(from, to);
  // The links between a device and `top`, from the device upwards.
  const auto climb = [&](DeviceId device_id, bool down) {
    std::vector<LinkIndex> links;
    std::size_t member = device_id.index();
    for (GroupId at = device(device_id).group;; at = *group(at).parent) {
      const Group& g = group(at);
      if (g.contention) links.push_back(link_of(member, down));
      if (g.bandwidth) route.bandwidth = std::min(route.bandwidth.value_or(*g.bandwidth), *g.bandwidth);
      if (at == top) return links;
      member = parts_.devices.size() + at.index() - 1;
    }
  };
  route.links = climb(from, false);
  const std::vector<LinkIndex> down = climb(to, true);
  route.links.insert(route.links.end(), down.rbegin(), down.rend());
  const Group& common = group(top);
  route.latency = common.latency;
  route.send = common.send;
  route.receive = common.receive;
  return route;
}

std::string Cluster::link_name(LinkIndex link) const {
  ESP_CHECK(link < link_count(), link);
  const std::size_t member = link / 2;
  const std::size_t devices = parts_.devices.size();
  const std::string& name =
      member < devices ? parts_.devices[member].name : parts_.groups[member - devices + 1].name;
  return name + (link % 2 == 0 ? " up" : " down");
}

CollectiveCost all_reduce_cost(const Cluster& cluster, std::span<const DeviceId> members, Bytes bytes) {
  ESP_CHECK(!members.empty());
  CollectiveCost cost;
  const auto n = static_cast<std::int64_t>(members.size());
  if (n == 1) return cost;
  const Bytes chunk((bytes.count() + n - 1) / n);
  Duration slowest;
  Duration latency;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Route route = cluster.route(members[i], members[(i + 1) % members.size()]);
    slowest = std::max(slowest, route.hold(chunk));
    latency = std::max(latency, route.latency + route.send.of(chunk) + route.receive.of(chunk));
    cost.links.insert(cost.links.end(), route.links.begin(), route.links.end());
  }
  std::sort(cost.links.begin(), cost.links.end());
  cost.links.erase(std::unique(cost.links.begin(), cost.links.end()), cost.links.end());
  const std::int64_t steps = 2 * (n - 1);
  const Duration limit((std::int64_t{1} << 62) / steps);  // times saturate, as transfer_time does
  cost.hold = std::min(slowest, limit) * steps;
  cost.latency = std::min(latency, limit) * steps;
  return cost;
}

}  // namespace espalier
