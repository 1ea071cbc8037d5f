#pragma once

// A job from a graph's text and a cluster's short form, with analytic costs, for tests of what the app does
// with one.

#include <string>
#include <utility>

#include "espalier/app/planning_job.h"
#include "espalier/cost/analytic.h"
#include "espalier/graph/text.h"

namespace espalier {

inline PlanningJob job_for_tests(const std::string& graph_text, const std::string& cluster_text,
                                 BatchSize batch, BatchSize micro_batch) {
  Graph graph = parse_graph(graph_text);
  Cluster cluster = parse_cluster(cluster_text);
  Training training;
  training.batch = batch;
  training.micro_batches = {micro_batch};
  CostTable costs = complete_costs(graph, cluster, CostTable(CostTableParts{}), training.micro_batches);
  return {.model = "m",
          .graph = std::move(graph),
          .cluster = std::move(cluster),
          .costs = std::move(costs),
          .training = training,
          .pins = {},
          .start = {},
          .locked = {},
          .stages = {},
          .cost_file = {},
          .measured = {},
          .notes = {},
          .warnings = {}};
}

}  // namespace espalier
