#pragma once

// Pipeline plans for tests, made without a planner: from a stage number for each operator.

#include <cstdint>
#include <functional>
#include <vector>

#include "espalier/base/rng.h"
#include "espalier/plan/plan.h"

namespace espalier::testing {

struct CutOptions {
  BatchSize batch{8};
  BatchSize micro_batch{2};
  Orders schedule = ScheduleKind::kOneFOneB;
  // Devices of each stage, one per replica; empty: stage i on device i.
  std::vector<std::vector<DeviceId>> devices = {};
  bool recompute = false;  // every operator that may be
  bool chain = false;      // each stage after the one before it
};

// Operators with number s stand in stage s; numbers ascend along data edges. Duplicable operators are added
// beside their readers, `after` is completed, in-flight limits are those of in_flight_limits.
PipelinePlan plan_from_stages(const Graph& graph, const std::vector<std::size_t>& stage_of,
                              const CutOptions& options);

// Runs of operators: `cuts` are first operators of the stages but the first. A cut through a colocation group
// moves behind it.
PipelinePlan plan_from_cuts(const Graph& graph, std::vector<std::size_t> cuts, const CutOptions& options);

// `stages` runs of random lengths, none empty if there are enough operators.
PipelinePlan random_cut_plan(const Graph& graph, std::size_t stages, const CutOptions& options, Rng& rng);

}  // namespace espalier::testing
