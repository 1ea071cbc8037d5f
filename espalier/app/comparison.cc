#include "espalier/app/comparison.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "espalier/app/catalog.h"
#include "espalier/app/placements.h"
#include "espalier/app/planner_call.h"

namespace espalier {
namespace {

// "2+1" for a stage on two devices and one on one.
std::string replica_text(const StagedModel& model) {
  std::string out;
  for (const StagedStage& stage : model.stages) {
    std::size_t devices = 0;
    for (const StagedReplica& replica : stage.replicas) devices += replica.devices.size();
    out += (out.empty() ? "" : "+") + std::to_string(devices);
  }
  return out;
}

void fill_row(ComparedPlan& row, const Judged& judged, const Cluster& cluster) {
  row.stages = judged.staged.stages.size();
  row.depth = pipeline_depth(judged.staged);
  row.replicas = replica_text(judged.staged);
  std::set<DeviceId> devices;
  for (const StagedStage& stage : judged.staged.stages) {
    for (const StagedReplica& replica : stage.replicas) {
      devices.insert(replica.devices.begin(), replica.devices.end());
    }
    row.micro_batches = std::max(row.micro_batches, stage.micro_batches);
  }
  row.devices = devices.size();
  row.micro_batch = judged.plan.stages.front().micro_batch;
  row.schedule = judged.plan.orders;
  row.iteration = judged.trace.iteration;
  row.bubble = judged.bubble;
  for (const MemoryByCategory& peak : judged.peak) row.peak = std::max(row.peak, peak.total());
  row.fits = !judged.overflow;
  row.gap = judged.gap();
  row.price = step_price(cluster, judged.staged, judged.trace.iteration, judged.plan.batch);
}

// The row of what a planner found, and one with data edges only where that says something else.
std::vector<ComparedPlan> rows_of(const PlanningJob& job, Planned planned, Duration planning_time) {
  ComparedPlan row;
  row.planner = planned.planner;
  row.planning_time = planning_time;
  row.status = planned.outcome.status;
  row.why = planned.outcome.why;
  row.estimate = planned.outcome.estimate;
  row.stats = planned.outcome.stats;
  if (!planned.judged) {
    row.fits = false;
    return {std::move(row)};
  }
  fill_row(row, *planned.judged, job.cluster);
  row.judged = std::move(planned.judged);
  // Of fragments such an edge is an order within the graph, not one of a chain.
  if (row.judged->placement || !has_bare_stage_edge(row.judged->staged)) return {std::move(row)};
  ComparedPlan bare;
  bare.planner = row.planner;
  bare.data_edges_only = true;
  bare.status = row.status;
  bare.judged = judge_data_edges_only(job, *row.judged);
  fill_row(bare, *bare.judged, job.cluster);
  return {std::move(row), std::move(bare)};
}

// The narrowest scope with all rows in it, where the micro-batches of plans from files are offered too.
Bound bound_of_all(const PlanningJob& job, const std::vector<ComparedPlan>& rows, const Bound& usual) {
  std::vector<BatchSize> sizes;
  bool one = true;
  for (const ComparedPlan& row : rows) {
    if (!row.judged) continue;
    one &= row.judged->any_bound.scope == Bound::Scope::kOneSize;
    for (const Stage& stage : row.judged->plan.stages) sizes.push_back(stage.micro_batch);
  }
  const PlanningJob sized = with_sizes(job, sizes);
  if (one && sized.training == job.training) return usual;
  return any_bound_of(sized, one ? Bound::Scope::kOneSize : Bound::Scope::kOfferedSizes);
}

// Of which auto has the usual part by its shares, if it is among them.
Budget usual_budget(const std::vector<NamedPlanner>& planners) {
  Budget budget;
  std::uint64_t shares = 0, of_auto = 0;
  for (const NamedPlanner& planner : planners) {
    shares += planner.shares;
    if (planner.name == kAutomatic) of_auto = planner.shares;
  }
  if (of_auto > 0) budget.max_states = budget.max_states / of_auto * shares;
  return budget;
}

bool may_be_best(const ComparedPlan& row) {
  return row.iteration && row.fits && !row.data_edges_only;
}

}  // namespace

Comparison compare_planners(const PlanningJob& job, const CompareOptions& options) {
  std::vector<std::string> names = options.planners;
  for (const PlannerEntry& entry : planner_catalog()) {
    if (options.planners.empty() && (entry.asked_by_auto || entry.name == kAutomatic))
      names.push_back(entry.name);
  }
  if (!job.stages.empty()) names.insert(names.begin(), std::string(kByHand));
  std::vector<NamedPlanner> planners;
  for (const std::string& name : names) planners.push_back(planner_for(job, name, PlannerMeans(options)));
  PlannerCall search(job, options.schedule, options.search);
  search.context.budget = options.budget ? *options.budget : usual_budget(planners);
  std::vector<Duration> times(planners.size());
  PlannerCalls calls;
  if (options.clock) {
    calls.begun = [&](std::size_t i) { times[i] = options.clock(); };
    calls.ended = [&](std::size_t i) { times[i] = options.clock() - times[i]; };
  }
  std::vector<Candidate> found;
  search.run([&] { found = run_all(search.problem, planners, search.context, calls); });
  const Candidate* const closest = closest_of(found);
  const std::string closest_maker = closest ? closest->name : "";
  const Plan closest_plan = closest ? closest->outcome.closest->plan : Plan();
  std::vector<std::vector<ComparedPlan>> rows(planners.size());
  search.pool.for_each(planners.size(), [&](std::size_t i) {
    rows[i] =
        rows_of(job, search.checked_and_judged(found[i].name, std::move(found[i].outcome), options.schedule),
                times[i]);
  });

  Comparison result;
  result.interrupted = search.context.stop();
  for (std::vector<ComparedPlan>& some : rows) {
    std::move(some.begin(), some.end(), std::back_inserter(result.rows));
  }
  for (const std::string& path : options.files) {
    ComparedPlan row;
    row.planner = path;
    row.judged = judge_file(job, path);
    row.status = row.judged->overflow ? Status::kInfeasible : Status::kFeasible;
    fill_row(row, *row.judged, job.cluster);
    result.rows.push_back(std::move(row));
  }
  result.any_bound = bound_of_all(job, result.rows, search.any_bound);
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    const ComparedPlan& row = result.rows[i];
    if (!may_be_best(row)) continue;
    if (!result.best || *row.iteration < *result.rows[*result.best].iteration) result.best = i;
  }
  if (!result.best && !result.interrupted && !closest_maker.empty() && closest_maker != "start") {
    std::vector<std::uint32_t> shares;
    for (const NamedPlanner& planner : planners) shares.push_back(planner.shares);
    result.shortage = search.explain(planner_for(job, closest_maker, PlannerMeans(options)),
                                     options.schedule.rule, shares, closest_plan);
  }
  return result;
}

std::optional<std::size_t> cheapest(const Comparison& comparison) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < comparison.rows.size(); ++i) {
    const ComparedPlan& row = comparison.rows[i];
    if (!may_be_best(row) || !row.price) continue;
    if (!best || row.price->million_samples < comparison.rows[*best].price->million_samples) best = i;
  }
  return best;
}

}  // namespace espalier
