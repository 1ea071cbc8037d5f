#pragma once

// "format": "espalier.schedule/1": compute orders as strings ("img:F0"), channels included.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "espalier/schedule/schedule.h"

namespace espalier {

nlohmann::ordered_json schedule_to_json(const StagedModel& model, const Cluster& cluster,
                                        const Schedule& schedule);
Schedule schedule_from_json(const nlohmann::ordered_json& json, const std::string& where,
                            const StagedModel& model, const Cluster& cluster);

}  // namespace espalier
