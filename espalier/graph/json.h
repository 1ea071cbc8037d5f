#pragma once

// The JSON form of a Graph, for files. It parses back.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "espalier/graph/graph.h"

namespace espalier {

nlohmann::ordered_json graph_to_json(const Graph& graph);  // "format": "espalier.graph/1"
Graph graph_from_json(const nlohmann::ordered_json& json, const std::string& where);

}  // namespace espalier
