#include "espalier/cluster/equal_parts.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace espalier {
namespace {

constexpr std::size_t kMostParts = 7;

// Devices in an order that is the same in groups of one shape.
struct Shaped {
  std::string shape;
  std::vector<DeviceId> devices;
};

class Divider {
 public:
  Divider(const Cluster& cluster, Division division)
      : cluster_(cluster), division_(division), groups_(cluster.groups().size()) {
    for (std::size_t g = 1; g < groups_.size(); ++g) {
      groups_[cluster.groups()[g].parent->index()].groups.emplace_back(g);
    }
    for (std::size_t d = 0; d < cluster.devices().size(); ++d) {
      groups_[cluster.devices()[d].group.index()].devices.emplace_back(d);
    }
    for (std::size_t g = groups_.size(); g-- > 0;) groups_[g].shaped = shaped(GroupId(g));
  }

  // Into that many parts, or nothing.
  std::optional<EqualParts> in(std::size_t parts) {
    copies_.assign(parts, {});
    shared_.clear();
    if (!divide(GroupId(0U))) return std::nullopt;
    std::vector<std::size_t> order(copies_.front().size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return copies_[0][a] < copies_[0][b]; });
    std::vector<std::vector<DeviceId>> copies(parts);
    for (std::size_t c = 0; c < parts; ++c) {
      for (const std::size_t i : order) copies[c].push_back(copies_[c][i]);
    }
    Cluster part = first_part(copies.front());
    return EqualParts{std::move(part), std::move(copies)};
  }

 private:
  struct Members {
    std::vector<GroupId> groups;
    std::vector<DeviceId> devices;
    Shaped shaped;
  };

  std::string shape_of(const Device& device) const {
    return "d" + std::to_string(device.kind.index()) + "," + std::to_string(device.memory.count()) +
           (device.price_per_hour ? "," + std::to_string(*device.price_per_hour) : "");
  }

  // A group's members by shape, each with its devices.
  std::map<std::string, std::vector<std::vector<DeviceId>>> members_of(GroupId group) const {
    std::map<std::string, std::vector<std::vector<DeviceId>>> members;
    for (const DeviceId device : groups_[group.index()].devices) {
      members[shape_of(cluster_.device(device))].push_back({device});
    }
    for (const GroupId below : groups_[group.index()].groups) {
      const Shaped& shaped = groups_[below.index()].shaped;
      if (!shaped.devices.empty()) members[shaped.shape].push_back(shaped.devices);
    }
    return members;
  }

  Shaped shaped(GroupId id) const {
    Group group = cluster_.group(id);
    group.name.clear();
    group.parent.reset();
    Shaped result;
    result.shape = "(" + std::to_string(group.bandwidth.value_or(0)) + "," +
                   std::to_string(group.latency.count()) + (group.contention ? "," : "/") +
                   text_of(group.send) + text_of(group.receive);
    for (const auto& [shape, members] : members_of(id)) {
      for (const std::vector<DeviceId>& devices : members) {
        result.shape += shape;
        result.devices.insert(result.devices.end(), devices.begin(), devices.end());
      }
    }
    result.shape += ")";
    return result;
  }

  static std::string text_of(const EndpointCost& cost) {
    return std::to_string(cost.fixed.count()) + "+" + std::to_string(cost.picoseconds_per_byte) + ",";
  }

  bool divide(GroupId group) {
    const std::size_t parts = copies_.size();
    const auto members = members_of(group);
    const bool evenly = std::all_of(members.begin(), members.end(),
                                    [&](const auto& each) { return each.second.size() % parts == 0; });
    const std::vector<GroupId>& below = groups_[group.index()].groups;
    const bool inner = groups_[group.index()].devices.empty() && !below.empty();
    if (!evenly && !inner) return false;
    if (inner && (!evenly || division_ == Division::kInnermost)) {
      shared_.push_back(group);
      return std::all_of(below.begin(), below.end(), [&](GroupId each) { return divide(each); });
    }
    for (const auto& [shape, same] : members) {
      const std::size_t each = same.size() / parts;
      for (std::size_t i = 0; i < same.size(); ++i) {
        std::vector<DeviceId>& copy = copies_[i / each];
        copy.insert(copy.end(), same[i].begin(), same[i].end());
      }
    }
    return true;
  }

  // The cluster without what stands in no group of these devices.
  Cluster first_part(const std::vector<DeviceId>& devices) const {
    const ClusterParts& whole = cluster_.parts();
    std::vector<char> kept(whole.groups.size());
    kept[0] = 1;
    for (const DeviceId device : devices) {
      for (std::optional<GroupId> at = whole.devices[device.index()].group; at && !kept[at->index()];
           at = whole.groups[at->index()].parent) {
        kept[at->index()] = 1;
      }
    }
    ClusterParts part{.kinds = whole.kinds, .groups = {}, .devices = {}, .links = {}};
    std::vector<GroupId> number(whole.groups.size());
    for (std::size_t g = 0; g < whole.groups.size(); ++g) {
      if (!kept[g]) continue;
      number[g] = GroupId(part.groups.size());
      Group group = whole.groups[g];
      if (group.parent) group.parent = number[group.parent->index()];
      const bool shared = std::find(shared_.begin(), shared_.end(), GroupId(g)) != shared_.end();
      if (shared && group.bandwidth && group.contention) {
        group.bandwidth = std::max<std::int64_t>(1, *group.bandwidth / std::ssize(copies_));
      }
      part.groups.push_back(std::move(group));
    }
    for (const DeviceId id : devices) {
      Device device = whole.devices[id.index()];
      device.group = number[device.group.index()];
      part.devices.push_back(std::move(device));
    }
    return Cluster(std::move(part));
  }

  const Cluster& cluster_;
  const Division division_;
  std::vector<Members> groups_;
  std::vector<std::vector<DeviceId>> copies_;
  std::vector<GroupId> shared_;
};

}  // namespace

std::optional<EqualParts> equal_parts(const Cluster& cluster, Division division, std::size_t least) {
  if (!cluster.links().empty()) return std::nullopt;
  const std::size_t devices = cluster.devices().size();
  Divider divider(cluster, division);
  for (std::size_t parts = 2; parts <= kMostParts && devices / parts >= std::max<std::size_t>(1, least);
       ++parts) {
    if (devices % parts != 0) continue;
    if (std::optional<EqualParts> found = divider.in(parts)) return found;
  }
  return std::nullopt;
}

}  // namespace espalier
