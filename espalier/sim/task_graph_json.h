#pragma once

// The JSON form of a TaskGraph, for files. It parses back.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "espalier/sim/task_graph.h"

namespace espalier {

nlohmann::ordered_json task_graph_to_json(const TaskGraph& graph);  // "format": "espalier.task_graph/1"
TaskGraph task_graph_from_json(const nlohmann::ordered_json& json, const std::string& where);

}  // namespace espalier
