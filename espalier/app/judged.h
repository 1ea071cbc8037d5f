#pragma once

// Plans judged by the simulator, and what any plan of a job must take.

#include <optional>
#include <vector>

#include "espalier/app/planning_job.h"
#include "espalier/bound/bound.h"
#include "espalier/plan/plan.h"
#include "espalier/plan/staged_model.h"
#include "espalier/trace/trace.h"

namespace espalier {

// A plan with the simulator's verdict.
struct Judged {
  PipelinePlan plan;  // of a placement: its fragments
  std::optional<Placement> placement = {};
  StagedModel staged;
  Trace trace;
  Duration expected;  // mean iteration under the measured spread of action times (sim/expected.h); else the
                      // trace's
  Bound stages_bound;
  Bound any_bound;  // for any plan of the narrowest scope that this one is in
  double bubble = 0;
  std::vector<MemoryByCategory> peak;  // by device
  std::optional<DeviceId> overflow;    // the first device that holds more than it has
  Bytes overflow_by;

  double gap() const;  // iteration / any_bound - 1: at most this much is left to win in that scope
};

// The plan must obey check_plan. O(operators + actions · log).
Judged judge(const PlanningJob& job, const PipelinePlan& plan);
// The fragments of a placement (fragments_of), which check_placement accepts.
Judged judge_fragments(const PlanningJob& job, const Placement& placement, PipelinePlan fragments);
// Where the bound of most plans is known: `any_bound`, of a scope that the plan is in.
Judged judge(const PlanningJob& job, const PipelinePlan& plan, const Bound& any_bound);

// Whether a stage follows another without reading from it: what a chain of branches costs.
bool has_bare_stage_edge(const StagedModel& model);
// The same stages in the same orders, waiting for data alone.
Judged judge_data_edges_only(const PlanningJob& job, const Judged& chain);

// For any plan of a scope; of the narrowest that a plan is in.
Bound any_bound_of(const PlanningJob& job, Bound::Scope scope);
Bound any_bound_of(const PlanningJob& job, const PipelinePlan& plan);

// Stages on the longest path.
std::size_t pipeline_depth(const StagedModel& model);

}  // namespace espalier
