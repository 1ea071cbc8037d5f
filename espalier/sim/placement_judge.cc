#include "espalier/sim/placement_judge.h"

#include "espalier/sim/simulate.h"

namespace espalier {

Evaluation judge_placement(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                           const Training& training, const Placement& placement,
                           const FragmentOptions& options) {
  Evaluation verdict;
  FragmentOptions all = options;
  all.devices = cluster.devices().size();
  const PipelinePlan fragments = fragments_of(graph, placement, training.batch, all);
  if (const std::optional<MissingCell> cell = missing_cell(graph, cluster, costs, fragments)) {
    verdict.forbidden = ForbiddenCell{cell->op, cell->kind, 1};
    return verdict;
  }
  const StagedModel model = stage_placement(graph, cluster, costs, training, fragments);
  const Schedule schedule = make_schedule(model, cluster.devices().size());
  verdict.deadlock =
      !check_fragment_orders(model, cluster).empty() || !check_schedule(model, schedule).empty();
  if (verdict.deadlock) return verdict;
  const Trace trace = simulate(model, cluster, schedule);
  verdict.iteration = trace.iteration;
  verdict.peak = peak_memory(trace);
  for (std::size_t d = 0; d < verdict.peak.size() && !verdict.overflow; ++d) {
    if (cluster.devices()[d].memory < verdict.peak[d].total()) verdict.overflow = DeviceId(d);
  }
  return verdict;
}

}  // namespace espalier
