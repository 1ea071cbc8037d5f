#pragma once

// Written forms of plans. Lines for people and tests:
//
//   batch 16 micro_batch 4 schedule 1f1b [tokens both]
//   stage img  gpu:0 { img_conv .. img_pool }
//   stage txt  gpu:1 | gpu:2 { txt } in_flight 2
//   stage head gpu:3 + gpu:4 { sims loss } after img txt recompute { sims }
//
// `a .. b` is a run in graph order; `|` stands between replicas, `+` within a tensor-parallel group. Behind
// its operators a stage line has, in any order, after, in_flight, recompute, micro_batch (if not the first
// line's) and share (`share 0,2,4 | 1,3`: each replica's micro-batches). in_flight defaults to
// in_flight_limits, shares to round_robin, and `after` is completed by data edges. A name that holds blanks
// or braces, or is one of these words, stands in quotes. A placement: `gpu:0 { a b .. f }` a line.
//
// Parsing throws InputError "line 3: …" where a line cannot be read, names what is not there, or gives a
// stage a name that stands above; rules of plans are check_plan's business. parse(print(x)) == x.

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

nlohmann::ordered_json placement_to_json(const Placement& placement, const Graph& graph,
                                         const Cluster& cluster);  // "format": "espalier.placement/1"
Placement placement_from_json(const nlohmann::ordered_json& json, const std::string& where,
                              const Graph& graph, const Cluster& cluster);

nlohmann::ordered_json staged_model_to_json(const StagedModel& model, const Cluster& cluster);
StagedModel staged_model_from_json(const nlohmann::ordered_json& json, const std::string& where,
                                   const Cluster& cluster);

}  // namespace espalier
