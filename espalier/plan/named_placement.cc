#include "espalier/plan/named_placement.h"

#include <map>
#include <optional>

#include "espalier/base/check.h"

namespace espalier {

NamedPlacement name_placement(const Placement& placement, const Graph& graph, const Cluster& cluster) {
  const bool leveled = !placement.level.empty();
  const auto key = [&](std::size_t op) {
    return std::pair(placement.device[op], leveled ? placement.level[op] : 0);
  };
  std::map<std::pair<DeviceId, std::uint32_t>, NamedPlacement::OnDevice> named;
  const std::size_t count = placement.device.size();
  for (std::size_t first = 0, last = 0; first < count; first = last + 1) {
    last = first;
    while (last + 1 < count && key(last + 1) == key(first)) ++last;
    named[key(first)].operators.emplace_back(graph.op(OperatorId(first)).name,
                                             graph.op(OperatorId(last)).name);
  }
  NamedPlacement result;
  for (auto& [place, on] : named) {
    on.device = cluster.device(place.first).name;
    if (leveled) on.level = place.second;
    result.devices.push_back(std::move(on));
  }
  return result;
}

Placement resolve_placement(const NamedPlacement& named, const Graph& graph, const Cluster& cluster,
                            const std::string& where) {
  std::vector<std::optional<DeviceId>> placed(graph.operators().size());
  const bool leveled = !named.devices.empty() && named.devices.front().level.has_value();
  Placement placement;
  if (leveled) placement.level.resize(placed.size());
  for (std::size_t d = 0; d < named.devices.size(); ++d) {
    const NamedPlacement::OnDevice& on = named.devices[d];
    const std::string device_place = where + "devices[" + std::to_string(d) + "]";
    const std::optional<DeviceId> device = cluster.find_device(on.device);
    if (!device) {
      throw InputError(device_place + ".device: is '" + on.device.substr(0, 80) +
                       "', which is no device; the first is '" + cluster.devices().front().name + "'");
    }
    if (on.level.has_value() != leveled) {
      throw InputError(device_place + (leveled ? ": has no level" : ": has a level") +
                       ", and devices[0] has " + (leveled ? "one" : "none") +
                       "; expected levels everywhere or nowhere");
    }
    for (std::size_t i = 0; i < on.operators.size(); ++i) {
      const auto fail = [&](const std::string& problem) {
        throw InputError(device_place + ".operators[" + std::to_string(i) + "]: " + problem);
      };
      const auto find = [&](const std::string& name) {
        const std::optional<OperatorId> id = graph.find_operator(name);
        if (!id) fail("'" + name.substr(0, 80) + "' is no operator of the model");
        return *id;
      };
      const OperatorId first = find(on.operators[i].first), last = find(on.operators[i].second);
      if (last < first) fail("runs against the model's order");
      for (std::size_t op = first.index(); op <= last.index(); ++op) {
        if (placed[op]) fail("places operator '" + graph.operators()[op].name + "' a second time");
        placed[op] = device;
        if (leveled) placement.level[op] = *on.level;
      }
    }
  }
  for (std::size_t op = 0; op < placed.size(); ++op) {
    if (!placed[op]) {
      throw InputError(where + "operator '" + graph.operators()[op].name + "' stands on no device");
    }
    placement.device.push_back(*placed[op]);
  }
  return placement;
}

}  // namespace espalier
