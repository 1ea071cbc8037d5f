#pragma once

// What `plan` and `compare` say where nothing fits.

#include <nlohmann/json_fwd.hpp>

#include "espalier/planners/shortage.h"

namespace espalier::cli {

nlohmann::ordered_json shortage_json(const Shortage& shortage, const Cluster& cluster);

}  // namespace espalier::cli
