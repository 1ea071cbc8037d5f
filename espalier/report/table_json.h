#pragma once

// A Table for machines: an array of objects.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "espalier/report/table.h"

namespace espalier {

nlohmann::ordered_json to_json(const Table& table);

}  // namespace espalier
