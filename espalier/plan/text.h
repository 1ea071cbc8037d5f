#pragma once

// Written forms of plans. Lines for people and tests:
//
//   batch 16 micro_batch 4 schedule 1f1b
//   stage img  gpu:0 { img_conv .. img_pool }               operators by name; `a .. b` is a run in graph
//   order stage txt  gpu:1 | gpu:2 { txt } in_flight 2            two replicas; a + b is a tensor-parallel
//   group stage head gpu:3 { sims loss } after img txt recompute { sims }
//
// Parts of a stage line come in any order after its devices. in_flight defaults to in_flight_limits, shares
// to round_robin (else `share 0,2,4 | 1,3`), `after` is completed by data edges. A placement: `gpu:0 { a b ..
// f }` a line.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "espalier/plan/plan.h"
#include "espalier/plan/staged_model.h"

namespace espalier {

PipelinePlan parse_plan(std::string_view text, const Graph& graph, const Cluster& cluster);
std::string print_plan(const PipelinePlan& plan, const Graph& graph, const Cluster& cluster);

Placement parse_placement(std::string_view text, const Graph& graph, const Cluster& cluster);
std::string print_placement(const Placement& placement, const Graph& graph, const Cluster& cluster);

nlohmann::ordered_json staged_model_to_json(const StagedModel& model, const Cluster& cluster);
StagedModel staged_model_from_json(const nlohmann::ordered_json& json, const std::string& where,
                                   const Cluster& cluster);

}  // namespace espalier
