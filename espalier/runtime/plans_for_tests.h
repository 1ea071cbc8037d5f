#pragma once

// What tests of plans share: fixtures, a cluster of cores, costs and staged models. Tests only.

#include <map>
#include <string>
#include <vector>

#include "espalier/cost/cost_table.h"
#include "espalier/plan/staged_model.h"

namespace espalier {

inline const std::string kFixtures = std::string(ESPALIER_SOURCE_DIR) + "/tests/fixtures/";

inline Cluster cpus(int devices) {
  return local_cluster({.devices = devices,
                        .memory_each = gibibytes(4),
                        .flops_f32_each = 1e11,
                        .memory_bandwidth_each = 10'000'000'000});
}

// Costs that nobody measured: schedules need none, stage_model asks for a cell of every class.
inline StagedModel staged_for_tests(const Graph& graph, const Cluster& cluster, const PipelinePlan& plan,
                                    const Optimizer& optimizer,
                                    StateCopies copies = StateCopies::kOfEachStage) {
  const BatchSize batch = plan.stages.at(0).micro_batch;
  std::map<std::string, OperatorCost> cells;
  for (const Operator& op : graph.operators()) {
    OperatorCost& cell = cells[op.op_class];
    cell.forward = cell.input_gradient = cell.weight_gradient = microseconds(10);
    if (!op.inputs.empty()) cell.saved = {{SavedTensor::Side::kInput, 0}};
  }
  CostTableParts parts;
  for (const auto& [name, cell] : cells) {
    parts.rows.push_back({name, cluster.kinds()[0].name, {}, {{batch, cell}}});
  }
  return stage_model(graph, cluster, CostTable(std::move(parts)), {plan.batch, {batch}, optimizer}, plan,
                     copies);
}

}  // namespace espalier
