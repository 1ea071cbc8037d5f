#pragma once

// The JSON form of a Trace, for files. It parses back.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "espalier/trace/trace.h"

namespace espalier {

nlohmann::ordered_json trace_to_json(const Trace& trace);  // "format": "espalier.trace/1"
Trace trace_from_json(const nlohmann::ordered_json& json, const std::string& where);

}  // namespace espalier
