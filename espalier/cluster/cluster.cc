#include "espalier/cluster/cluster.h"

#include <algorithm>
#include <set>
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
    check_prices();
    if (violations_.empty()) check_links();
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
    check_price("device kind '" + kind.name + "'", kind.price_per_hour);
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
    if (group.latency < Duration() || negative(group.send) || negative(group.receive)) {
      report("group '" + group.name + "' has a negative time");
    }
  }

  void check_device(const Device& device) {
    if (device.kind.index() >= parts_.kinds.size()) {
      report("device '" + device.name + "': there is no kind " + std::to_string(device.kind.index()));
    }
    if (device.group.index() >= parts_.groups.size()) {
      report("device '" + device.name + "': there is no group " + std::to_string(device.group.index()));
    }
    if (device.memory <= Bytes()) report("device '" + device.name + "': memory must be positive");
    check_price("device '" + device.name + "'", device.price_per_hour);
  }

  void check_price(const std::string& whose, const std::optional<double>& price) {
    if (price && !(*price >= 0 && *price <= kMaxRate))
      report(whose + ": the price per hour must be from 0 to 1e30");
  }

  // A sum over some of the devices would look like the price of all.
  void check_prices() {
    const Device* with = nullptr;
    const Device* without = nullptr;
    for (const Device& device : parts_.devices) {
      const Device*& first = device.price_per_hour ? with : without;
      if (!first) first = &device;
    }
    if (!with || !without) return;
    report("device '" + without->name + "' has no price per hour, but '" + with->name +
           "' has one: expected one for every device or kind (0 is free), or for none");
  }

  void check_links() {
    std::set<std::pair<Member, Member>> seen;
    for (std::size_t i = 0; i < parts_.links.size(); ++i) {
      const NamedLink& link = parts_.links[i];
      if (!exists(link.from) || !exists(link.to)) {
        report("links[" + std::to_string(i) + "]: one of its ends does not exist");
        continue;
      }
      const std::string name = "the link from '" + name_of(link.from) + "' to '" + name_of(link.to) + "'";
      if (holds(link.from, link.to) || holds(link.to, link.from)) {
        report(name + ": one end is in the other; expected two devices or groups side by side");
      }
      if (link.bandwidth <= 0) report(name + ": bandwidth must be positive");
      if (link.latency < Duration() || negative(link.send) || negative(link.receive)) {
        report(name + " has a negative time");
      }
      if (!seen.emplace(link.from, link.to).second) report(name + " stands twice");
    }
  }

  bool exists(Member member) const {
    if (const auto* device = std::get_if<DeviceId>(&member)) return device->index() < parts_.devices.size();
    return std::get<GroupId>(member).index() < parts_.groups.size();
  }
  const std::string& name_of(Member member) const {
    if (const auto* device = std::get_if<DeviceId>(&member)) return parts_.devices[device->index()].name;
    return parts_.groups[std::get<GroupId>(member).index()].name;
  }
  bool holds(Member outer, Member inner) const {
    if (outer == inner) return true;
    const auto* group = std::get_if<GroupId>(&outer);
    if (!group) return false;
    const auto* device = std::get_if<DeviceId>(&inner);
    std::optional<GroupId> at = device ? parts_.devices[device->index()].group
                                       : parts_.groups[std::get<GroupId>(inner).index()].parent;
    while (at && *at != *group) at = parts_.groups[at->index()].parent;
    return at.has_value();
  }
  static bool negative(const EndpointCost& cost) {
    return cost.fixed < Duration() || cost.picoseconds_per_byte < 0;
  }

  const ClusterParts& parts_;
  std::vector<std::string> violations_;
};

}  // namespace

std::vector<std::string> check_cluster(const ClusterParts& parts) {
  return Checker(parts).run();
}

NamedLink usual_link(const ClusterParts& parts, Member from, Member to) {
  const auto around = [&](Member member) {  // groups from the outermost inwards
    std::vector<GroupId> groups;
    const auto* device = std::get_if<DeviceId>(&member);
    std::optional<GroupId> at = device ? parts.devices[device->index()].group
                                       : parts.groups[std::get<GroupId>(member).index()].parent;
    for (; at; at = parts.groups[at->index()].parent) groups.insert(groups.begin(), *at);
    return groups;
  };
  NamedLink link{.from = from, .to = to};
  const std::vector<GroupId> x = around(from), y = around(to);
  for (std::size_t i = 0; i < std::min(x.size(), y.size()) && x[i] == y[i]; ++i) {
    const Group& common = parts.groups[x[i].index()];
    link.latency = common.latency;
    link.send = common.send;
    link.receive = common.receive;
  }
  return link;
}

Duration EndpointCost::of(Bytes bytes) const {
  constexpr Duration kLimit(std::int64_t{1} << 60);  // both ends and a latency still add up
  return std::min(kLimit, time_per_byte(bytes, picoseconds_per_byte) + fixed);
}

Cluster::Cluster(ClusterParts parts) : parts_(std::move(parts)) {
  if (const auto violations = check_cluster(parts_); !violations.empty()) throw InputError(violations[0]);
  depth_.assign(parts_.groups.size(), 0);
  for (std::size_t i = 1; i < parts_.groups.size(); ++i) {
    depth_[i] = depth_[parts_.groups[i].parent->index()] + 1;
  }
  const std::size_t first = 2 * (parts_.devices.size() + parts_.groups.size() - 1);
  for (std::size_t i = 0; i < parts_.links.size(); ++i) {
    const NamedLink& link = parts_.links[i];
    ways_.push_back({link.from, link.to, static_cast<LinkIndex>(first + 2 * i)});
    const bool other_way = std::any_of(parts_.links.begin(), parts_.links.end(), [&](const NamedLink& other) {
      return other.from == link.to && other.to == link.from;
    });
    if (!other_way) ways_.push_back({link.to, link.from, static_cast<LinkIndex>(first + 2 * i + 1)});
  }
  std::sort(ways_.begin(), ways_.end(),
            [](const Way& a, const Way& b) { return std::pair(a.from, a.to) < std::pair(b.from, b.to); });
}

const std::string& Cluster::name_of(Member member) const {
  if (const auto* id = std::get_if<DeviceId>(&member)) return device(*id).name;
  return group(std::get<GroupId>(member)).name;
}

bool Cluster::has_own_link(DeviceId device) const {
  return std::any_of(parts_.links.begin(), parts_.links.end(), [device](const NamedLink& link) {
    return link.from == Member(device) || link.to == Member(device);
  });
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

// The named link for this route, if there is one. Its ends are below `top`, since neither is in the other.
const Cluster::Way* Cluster::way(DeviceId from, DeviceId to, GroupId top) const {
  const Way* best = nullptr;
  std::uint32_t best_depth = 0;
  const auto up = [&](Member member) -> std::optional<Member> {  // the member around it, below `top`
    const auto* id = std::get_if<DeviceId>(&member);
    const GroupId around = id ? device(*id).group : *group(std::get<GroupId>(member)).parent;
    return around == top ? std::nullopt : std::optional<Member>(around);
  };
  const auto depth = [&](Member member) {
    const auto* id = std::get_if<DeviceId>(&member);
    return id ? depth_[device(*id).group.index()] + 1 : depth_[std::get<GroupId>(member).index()];
  };
  for (std::optional<Member> x = Member(from); x; x = up(*x)) {
    for (std::optional<Member> y = Member(to); y; y = up(*y)) {
      const auto key = std::pair(*x, *y);
      const auto found =
          std::lower_bound(ways_.begin(), ways_.end(), key,
                           [](const Way& a, const auto& ends) { return std::pair(a.from, a.to) < ends; });
      if (found == ways_.end() || std::pair(found->from, found->to) != key) continue;
      const std::uint32_t both = depth(*x) + depth(*y);
      if (best && (both < best_depth || (both == best_depth && best->link < found->link))) continue;
      best = &*found;
      best_depth = both;
    }
  }
  return best;
}

Route Cluster::route(DeviceId from, DeviceId to) const {
  Route route;
  if (from == to) return route;
  const GroupId top = common_group(from, to);
  const Way* named = ways_.empty() ? nullptr : way(from, to, top);
  // The links from a device up to `end`, which is a member around it, or the common group.
  const auto climb = [&](DeviceId device_id, Member end, bool down) {
    std::vector<LinkIndex> links;
    std::size_t member = device_id.index();
    if (end == Member(device_id)) return links;
    for (GroupId at = device(device_id).group;; at = *group(at).parent) {
      const Group& g = group(at);
      if (g.contention) links.push_back(link_of(member, down));
      if (g.bandwidth) route.bandwidth = std::min(route.bandwidth.value_or(*g.bandwidth), *g.bandwidth);
      if (Member(at) == end) return links;
      member = parts_.devices.size() + at.index() - 1;
    }
  };
  route.links = climb(from, named ? named->from : Member(top), false);
  const std::vector<LinkIndex> down = climb(to, named ? named->to : Member(top), true);
  if (named) {
    const std::size_t first = 2 * (parts_.devices.size() + parts_.groups.size() - 1);
    const NamedLink& link = parts_.links[(named->link - first) / 2];
    if (link.contention) route.links.push_back(named->link);
    route.bandwidth = std::min(route.bandwidth.value_or(link.bandwidth), link.bandwidth);
    route.latency = link.latency;
    route.send = link.send;
    route.receive = link.receive;
  } else {
    const Group& common = group(top);
    route.latency = common.latency;
    route.send = common.send;
    route.receive = common.receive;
  }
  route.links.insert(route.links.end(), down.rbegin(), down.rend());
  return route;
}

std::string Cluster::link_name(LinkIndex link) const {
  ESP_CHECK(link < link_count(), link);
  const std::size_t member = link / 2;
  const std::size_t devices = parts_.devices.size();
  const std::size_t members = devices + parts_.groups.size() - 1;
  if (member >= members) {
    const NamedLink& named = parts_.links[member - members];
    const bool forth = link % 2 == 0;
    return name_of(forth ? named.from : named.to) + " to " + name_of(forth ? named.to : named.from);
  }
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
