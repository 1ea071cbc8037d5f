#pragma once

// Lines of a plan, for people and tests; they parse back. Files hold the JSON form (plan_file.h, json.h).
//
//   batch 16 micro_batch 4 schedule 1f1b [tokens both]
//   stage img  gpu:0 { img_conv .. img_pool }
//   stage txt  gpu:1 | gpu:2 { txt } in_flight 2
//   stage head gpu:3 + gpu:4 { sims loss } after img txt recompute { sims }
//
// or `schedule lists` with lines `order gpu:0 3F 2(B F) 3B` (orders.h).
//
// `a .. b` is a run in graph order; `|` stands between replicas, `+` within a tensor-parallel group. Behind
// its operators a stage line has, in any order, after, in_flight, slots, recompute, micro_batch (if not the
// first line's) and share (`share 0,2,4 | 1,3`: each replica's micro-batches). in_flight defaults to
// in_flight_limits, shares to round_robin, and `after` is completed by data edges. A name that holds blanks
// or braces, or is one of these words, stands in quotes. A placement: `gpu:0 { a b .. f }` a line,
// or with levels `gpu:0 level 3 { a b }` in every line.
//
// Parsing throws InputError "line 3: …" where a line cannot be read, names what is not there, or gives a
// stage a name that stands above; rules of plans are check_plan's business. parse(print(x)) == x.

#include <string>
#include <string_view>

#include "espalier/plan/plan.h"
#include "espalier/plan/staged_model.h"

namespace espalier {

PipelinePlan parse_plan(std::string_view text, const Graph& graph, const Cluster& cluster);
std::string print_plan(const PipelinePlan& plan, const Graph& graph, const Cluster& cluster);

Placement parse_placement(std::string_view text, const Graph& graph, const Cluster& cluster);
std::string print_placement(const Placement& placement, const Graph& graph, const Cluster& cluster);

}  // namespace espalier
