#include "espalier/app/judged.h"

#include <algorithm>
#include <utility>

#include "espalier/plan/fragments.h"
#include "espalier/schedule/schedule.h"
#include "espalier/sim/expected.h"
#include "espalier/sim/simulate.h"

namespace espalier {
namespace {

void judge_memory(const Cluster& cluster, Judged& judged) {
  judged.peak = peak_memory(judged.trace);
  for (std::size_t d = 0; d < judged.peak.size(); ++d) {
    const Bytes limit = cluster.device(DeviceId(d)).memory;
    if (!judged.overflow && limit < judged.peak[d].total()) {
      judged.overflow = DeviceId(d);
      judged.overflow_by = judged.peak[d].total() - limit;
    }
  }
}

Judged judge_staged(const PlanningJob& job, PipelinePlan plan, StagedModel staged, const Schedule& schedule,
                    const Bound& any_bound) {
  Trace trace = simulate(staged, job.cluster, schedule);
  const Duration expected = job.measured
                                ? expected_iteration(staged, job.cluster, schedule, job.measured->scatter)
                                : trace.iteration;
  Bound stages = stages_bound(staged, job.cluster);
  Judged judged{.plan = std::move(plan),
                .placement = {},
                .staged = std::move(staged),
                .trace = std::move(trace),
                .expected = expected,
                .stages_bound = std::move(stages),
                .any_bound = any_bound,
                .bubble = 0,
                .peak = {},
                .overflow = {},
                .overflow_by = {}};
  judged.bubble = bubble_ratio(judged.trace);
  judge_memory(job.cluster, judged);
  if (judged.overflow) {
    judged.any_bound =
        plan_bound(job.graph, job.cluster, job.costs, job.training, any_bound.scope, Bound::Plans::kAll);
  }
  return judged;
}

}  // namespace

double Judged::gap() const {
  return relative_difference(trace.iteration, any_bound.time);
}

Judged judge(const PlanningJob& job, const PipelinePlan& plan, const Bound& any_bound) {
  StagedModel staged = stage_model(job.graph, job.cluster, job.costs, job.training, plan);
  const Schedule schedule = make_schedule(staged, job.cluster.devices().size());
  return judge_staged(job, plan, std::move(staged), schedule, any_bound);
}

Judged judge(const PlanningJob& job, const PipelinePlan& plan) {
  return judge(job, plan, any_bound_of(job, plan));
}

Judged judge_fragments(const PlanningJob& job, const Placement& placement, PipelinePlan fragments) {
  StagedModel staged = stage_placement(job.graph, job.cluster, job.costs, job.training, fragments);
  const Schedule schedule = make_schedule(staged, job.cluster.devices().size());
  const Bound bound = any_bound_of(job, fragments);
  Judged judged = judge_staged(job, std::move(fragments), std::move(staged), schedule, bound);
  judged.placement = placement;
  return judged;
}

bool has_bare_stage_edge(const StagedModel& model) {
  return std::any_of(model.crossings.begin(), model.crossings.end(),
                     [](const Crossing& crossing) { return crossing.token; });
}

Judged judge_data_edges_only(const PlanningJob& job, const Judged& chain) {
  PipelinePlan plan = chain.plan;
  plan.tokens = TokenRule::kNone;
  StagedModel staged = stage_model(job.graph, job.cluster, job.costs, job.training, plan);
  Schedule orders = make_schedule(chain.staged, job.cluster.devices().size());
  const Schedule schedule = with_channels(staged, std::move(orders.devices));
  return judge_staged(job, std::move(plan), std::move(staged), schedule, chain.any_bound);
}

Bound any_bound_of(const PlanningJob& job, Bound::Scope scope) {
  return plan_bound(job.graph, job.cluster, job.costs, job.training, scope);
}

Bound any_bound_of(const PlanningJob& job, const PipelinePlan& plan) {
  return any_bound_of(job, scope_of(plan, job.training));
}

std::size_t pipeline_depth(const StagedModel& model) {
  std::vector<std::size_t> depth(model.stages.size(), 1);
  std::size_t most = 0;
  for (std::size_t s = 0; s < model.stages.size(); ++s) {
    for (const StageId before : model.stages[s].after)
      depth[s] = std::max(depth[s], depth[before.index()] + 1);
    most = std::max(most, depth[s]);
  }
  return most;
}

}  // namespace espalier
