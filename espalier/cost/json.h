#pragma once

// The JSON form of a CostTable, for files. It parses back.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "espalier/cost/cost_table.h"

namespace espalier {

class JsonCursor;

nlohmann::ordered_json costs_to_json(const CostTable& table);  // "format": "espalier.costs/1"
CostTable costs_from_json(const nlohmann::ordered_json& json, const std::string& where);

// An ActionScatter among the members of an object; what is not there is zero.
void add_scatter(nlohmann::ordered_json& json, const ActionScatter& scatter);
ActionScatter scatter_from_json(const JsonCursor& json);

}  // namespace espalier
