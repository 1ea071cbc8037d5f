#pragma once

// What a frontend returns must be as good as any other value: legal, and readable in both written forms.

#include "espalier/base/json.h"
#include "espalier/cluster/json.h"
#include "espalier/cluster/text.h"
#include "espalier/cost/json.h"
#include "espalier/cost/text.h"
#include "espalier/frontend/imported.h"
#include "espalier/graph/json.h"
#include "espalier/graph/text.h"
#include "tests/fuzz/fuzz.h"

namespace espalier {

inline void check_imported(const Imported& model) {
  require(parse_graph(print_graph(model.graph)) == model.graph);
  require(graph_from_json(graph_to_json(model.graph), "f") == model.graph);
  if (model.costs) {
    require(parse_costs(print_costs(*model.costs)) == *model.costs);
    require(costs_from_json(costs_to_json(*model.costs), "f") == *model.costs);
  }
  if (model.cluster) {
    require(parse_cluster_lines(print_cluster(*model.cluster)) == *model.cluster);
    require(cluster_from_json(cluster_to_json(*model.cluster), "f") == *model.cluster);
    if (model.plan) require(check_plan(model.graph, *model.cluster, *model.plan).empty());
    if (model.placement) require(check_placement(model.graph, *model.cluster, *model.placement).empty());
  }
  for (const std::string& line : model.warnings) require(line.find('\n') == std::string::npos);
}

}  // namespace espalier
