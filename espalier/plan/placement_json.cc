// "format": "espalier.placement/1": each device that has operators, with them as runs in graph order; with
// levels, each device and level.

#include "espalier/base/json.h"
#include "espalier/plan/json.h"
#include "espalier/plan/text.h"

namespace espalier {
namespace {

constexpr std::string_view kPlacementFormat = "espalier.placement/1";

}  // namespace

nlohmann::ordered_json named_placement_to_json(const NamedPlacement& placement) {
  Json devices = Json::array();
  for (const NamedPlacement::OnDevice& on : placement.devices) {
    Json entry = {{"device", on.device}};
    if (on.level) entry["level"] = *on.level;
    entry["operators"] = runs_to_json(on.operators);
    devices.push_back(std::move(entry));
  }
  return devices;
}

NamedPlacement named_placement_from_json(const JsonCursor& json) {
  NamedPlacement placement;
  for (std::size_t d = 0; d < json.size(); ++d) {
    const JsonCursor entry = json.at(d);
    entry.only({"device", "level", "operators"});
    NamedPlacement::OnDevice on{.device = entry.at("device").string(), .operators = {}};
    if (entry.has("level")) on.level = static_cast<std::uint32_t>(entry.at("level").integer(0, kMostLevel));
    on.operators = runs_from_json(entry.at("operators"));
    placement.devices.push_back(std::move(on));
  }
  return placement;
}

nlohmann::ordered_json runs_to_json(const std::vector<std::pair<std::string, std::string>>& runs) {
  Json json = Json::array();
  for (const auto& [first, last] : runs) {
    json.push_back(first == last ? Json::array({first}) : Json::array({first, last}));
  }
  return json;
}

std::vector<std::pair<std::string, std::string>> runs_from_json(const JsonCursor& json) {
  std::vector<std::pair<std::string, std::string>> runs;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const JsonCursor run = json.at(i);
    if (run.size() < 1 || run.size() > 2) {
      run.fail("is no run of operators: expected [first, last] or [only]");
    }
    runs.emplace_back(run.at(std::size_t{0}).string(), run.at(run.size() - 1).string());
  }
  return runs;
}

nlohmann::ordered_json placement_to_json(const Placement& placement, const Graph& graph,
                                         const Cluster& cluster) {
  return {{"format", kPlacementFormat},
          {"devices", named_placement_to_json(name_placement(placement, graph, cluster))}};
}

Placement placement_from_json(const nlohmann::ordered_json& json, const std::string& where,
                              const Graph& graph, const Cluster& cluster) {
  const JsonCursor root(json, where);
  root.expect_format(kPlacementFormat);
  root.only({"format", "devices"});
  return resolve_placement(named_placement_from_json(root.at("devices")), graph, cluster, where + ": ");
}

}  // namespace espalier
