#pragma once

// The JSON forms of a CostTable and of calibrations, for files. They parse back.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "espalier/cost/calibration.h"
#include "espalier/cost/cost_table.h"

namespace espalier {

class JsonCursor;

nlohmann::ordered_json costs_to_json(const CostTable& table);  // "format": "espalier.costs/1"
CostTable costs_from_json(const nlohmann::ordered_json& json, const std::string& where);

// "format": "espalier.calibration/1": any number of them. Throws InputError naming the place.
nlohmann::ordered_json calibrations_to_json(const std::vector<Calibration>& calibrations);
std::vector<Calibration> calibrations_from_json(const nlohmann::ordered_json& json, const std::string& where);

// An ActionScatter among the members of an object; what is not there is zero.
void add_scatter(nlohmann::ordered_json& json, const ActionScatter& scatter);
ActionScatter scatter_from_json(const JsonCursor& json);

}  // namespace espalier
