// "format": "espalier.placement/1": each device that has operators, with them as runs in graph order.

#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "espalier/base/json.h"
#include "espalier/plan/json.h"
#include "espalier/plan/text.h"

namespace espalier {
namespace {

constexpr std::string_view kPlacementFormat = "espalier.placement/1";

OperatorId operator_at(const JsonCursor& cursor, const Graph& graph) {
  const std::string name = cursor.string();
  const auto id = graph.find_operator(name);
  if (!id) cursor.fail("is '" + name.substr(0, 80) + "', which is no operator of the model");
  return *id;
}

}  // namespace

nlohmann::ordered_json placement_to_json(const Placement& placement, const Graph& graph,
                                         const Cluster& cluster) {
  std::map<DeviceId, Json> runs;
  const std::size_t count = placement.device.size();
  for (std::size_t first = 0, last = 0; first < count; first = last + 1) {
    last = first;
    while (last + 1 < count && placement.device[last + 1] == placement.device[first]) ++last;
    Json run = Json::array({graph.op(OperatorId(first)).name});
    if (last > first) run.push_back(graph.op(OperatorId(last)).name);
    runs.try_emplace(placement.device[first], Json::array()).first->second.push_back(std::move(run));
  }
  Json devices = Json::array();
  for (auto& [device, operators] : runs) {
    devices.push_back({{"device", cluster.device(device).name}, {"operators", std::move(operators)}});
  }
  return {{"format", kPlacementFormat}, {"devices", std::move(devices)}};
}

Placement placement_from_json(const nlohmann::ordered_json& json, const std::string& where,
                              const Graph& graph, const Cluster& cluster) {
  const JsonCursor root(json, where);
  root.expect_format(kPlacementFormat);
  root.only({"format", "devices"});
  std::vector<std::optional<DeviceId>> placed(graph.operators().size());
  const JsonCursor devices = root.at("devices");
  for (std::size_t d = 0; d < devices.size(); ++d) {
    const JsonCursor entry = devices.at(d);
    entry.only({"device", "operators"});
    const std::string name = entry.at("device").string();
    const auto device = cluster.find_device(name);
    if (!device) entry.at("device").fail("is '" + name.substr(0, 80) + "', which is no device");
    const JsonCursor runs = entry.at("operators");
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const JsonCursor run = runs.at(i);
      if (run.size() < 1 || run.size() > 2)
        run.fail("is no run of operators: expected [first, last] or [only]");
      const OperatorId first = operator_at(run.at(std::size_t{0}), graph);
      const OperatorId last = operator_at(run.at(run.size() - 1), graph);
      if (last < first) run.fail("runs against the model's order");
      for (std::size_t op = first.index(); op <= last.index(); ++op) {
        if (placed[op]) run.fail("places operator '" + graph.operators()[op].name + "' a second time");
        placed[op] = *device;
      }
    }
  }
  Placement placement;
  for (std::size_t op = 0; op < placed.size(); ++op) {
    if (!placed[op]) root.fail("operator '" + graph.operators()[op].name + "' stands on no device");
    placement.device.push_back(*placed[op]);
  }
  return placement;
}

}  // namespace espalier
