#pragma once

// JSON forms of placements, staged models and training settings, for files. They parse back.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "espalier/plan/named_placement.h"
#include "espalier/plan/plan.h"
#include "espalier/plan/plan_file.h"
#include "espalier/plan/staged_model.h"

namespace espalier {

class JsonCursor;

// Runs of operators in a graph's order: [["first", "last"], ["only"]].
nlohmann::ordered_json runs_to_json(const std::vector<std::pair<std::string, std::string>>& runs);
std::vector<std::pair<std::string, std::string>> runs_from_json(const JsonCursor& json);

// [{"device": "gpu:0", "operators": [["first", "last"]]}]: a part of placements and of plan files.
nlohmann::ordered_json named_placement_to_json(const NamedPlacement& placement);
NamedPlacement named_placement_from_json(const JsonCursor& json);

nlohmann::ordered_json placement_to_json(const Placement& placement, const Graph& graph,
                                         const Cluster& cluster);  // "format": "espalier.placement/1"
Placement placement_from_json(const nlohmann::ordered_json& json, const std::string& where,
                              const Graph& graph, const Cluster& cluster);

nlohmann::ordered_json staged_model_to_json(const StagedModel& model, const Cluster& cluster);
StagedModel staged_model_from_json(const nlohmann::ordered_json& json, const std::string& where,
                                   const Cluster& cluster);

// A part of plan files: [{"kind": "V100", "name": "winograd", "operators": ["conv1"]}].
nlohmann::ordered_json implementations_to_json(const std::vector<NamedImplementation>& implementations);

nlohmann::ordered_json training_to_json(const Training& training);  // a part of plan files and of checkpoints
Training training_from_json(const nlohmann::ordered_json& json, const std::string& where);

}  // namespace espalier
