#pragma once

// The JSON form of a Cluster, for files. It parses back.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "espalier/cluster/cluster.h"

namespace espalier {

nlohmann::ordered_json cluster_to_json(const Cluster& cluster);  // "format": "espalier.cluster/1"
Cluster cluster_from_json(const nlohmann::ordered_json& json, const std::string& where);

}  // namespace espalier
