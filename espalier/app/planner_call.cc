#include "espalier/app/planner_call.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "espalier/app/catalog.h"
#include "espalier/app/explain.h"
#include "espalier/app/placements.h"
#include "espalier/base/check.h"
#include "espalier/planners/automatic.h"
#include "espalier/planners/hand_plan.h"
#include "espalier/planners/joint/joint.h"
#include "espalier/planners/pipeline/locked.h"
#include "espalier/planners/pipeline/looped.h"
#include "espalier/planners/placement/placement_planner.h"
#include "espalier/planners/placement/placer.h"
#include "espalier/schedule/schedule.h"

namespace espalier {
namespace {

// The first pinned operator that stands elsewhere.
std::optional<std::string> broken_pin(const PlanningJob& job, const PipelinePlan& plan) {
  if (job.pins.empty()) return std::nullopt;
  const std::vector<std::optional<DeviceId>> pinned = resolve_pins(job.graph, job.pins);
  for (const Stage& stage : plan.stages) {
    for (const OperatorId op : stage.operators) {
      const std::optional<DeviceId> device = pinned[op.index()];
      if (!device || job.graph.op(op).duplicable) continue;
      for (const Replica& replica : stage.replicas) {
        if (replica.devices != std::vector{*device}) {
          return describe_pin(job.graph, job.cluster, job.pins, op) + ", the plan has it elsewhere";
        }
      }
    }
  }
  return std::nullopt;
}

// The plan with orders that are made for it.
PipelinePlan with_own_orders(const PlanningJob& job, PipelinePlan plan, const ChosenOrders& chosen) {
  const auto staged = [&] { return stage_model(job.graph, job.cluster, job.costs, job.training, plan); };
  plan.orders = orders_for(chosen, staged(), job.cluster);
  const std::vector<std::uint32_t> limits = in_flight_limits(plan);
  for (std::size_t s = 0; s < limits.size(); ++s) plan.stages[s].in_flight = limits[s];
  const StagedModel model = staged();
  const std::vector<std::string> problems =
      check_schedule(model, make_schedule(model, job.cluster.devices().size()));
  if (!problems.empty()) throw InputError(chosen.where() + ": " + problems.front());
  return plan;
}

Problem problem_of(const PlanningJob& job, const ChosenOrders& orders) {
  Problem problem = job.problem();
  problem.lists = orders.is_open();
  return problem;
}

// Whoever improves a plan looks at its neighbours: these make others, and soon.
std::vector<NamedPlanner> planners_beside_a_plan(const OrderRule& rule) {
  std::vector<NamedPlanner> planners = named_planners(rule);
  std::erase_if(planners, [](const NamedPlanner& each) {
    return each.name != "graphpipe" && each.name != "piper" && each.name != "checkpointed";
  });
  return planners;
}

NamedPlanner with_early_ones(NamedPlanner maker, const OrderRule& rule) {
  std::vector<NamedPlanner> planners{maker};
  for (NamedPlanner& each : named_planners(rule)) {
    if (each.early && each.name != maker.name) planners.push_back(std::move(each));
  }
  maker.shares = 0;
  for (const NamedPlanner& each : planners) maker.shares += each.shares;
  maker.plan = [planners](const Problem& changed, Context& own) { return automatic(changed, planners, own); };
  return maker;
}

}  // namespace

NamedPlanner planner_for(const PlanningJob& job, const std::string& name, const PlannerMeans& means) {
  const ChosenOrders& chosen = means.chosen;
  const OrderRule& schedule = chosen.rule;
  if (name == kByHand) {
    return {name, [&job, schedule](const Problem& problem, Context& context) {
              return plan_by_hand(problem, job.stages, {.schedule = schedule}, context);
            }};
  }
  // A schedule for a line of stages needs a plan that is laid for it.
  const bool laid = chosen.named && chosen.named->needs_line();
  const PlannerEntry& planner =
      find_planner(laid && name == kAutomatic && job.locked.empty() ? kLooped : name);
  if (planner.name == kLooped && chosen.named) {
    return {planner.name,
            [named = *chosen.named](const Problem& problem, Context& context) {
              return looped(problem, {.orders = named}, context);
            },
            planner.shares};
  }
  if (planner.name == kAutomatic) {
    const JointOptions options{
        .orders = chosen.is_open() ? joint::OrdersMay::kChange : joint::OrdersMay::kStay,
        .guide = means.guides.plans};
    return {name,
            [schedule, options, brief = means.brief](const Problem& problem, Context& context) {
              if (problem.locked.empty()) {
                const bool few = brief && problem.start;
                return joint_search(problem,
                                    few ? planners_beside_a_plan(schedule) : named_planners(schedule),
                                    options, context);
              }
              Outcome kept = keep_locked(problem, {.schedule = schedule}, context);
              return improved(problem, std::move(kept), options, context);
            },
            planner.shares};
  }
  const placement::ProposalGuide* const proposals =
      planner.name == kLocalSearch ? means.guides.placements : nullptr;
  const auto plan = [&planner, schedule, learned = means.learned, proposals](const Problem& problem,
                                                                             Context& context) -> Outcome {
    if (problem.locked.empty() && planner.learned && learned) return learned(planner.name, problem, context);
    if (problem.locked.empty() && proposals) {
      return placement::plan_by_placer(problem, placement::find_placer(kLocalSearch),
                                       {.order = problem.order, .guide = proposals}, context);
    }
    if (problem.locked.empty()) return planner.plan(problem, schedule, context);
    return {.status = Status::kUnsupported,
            .why = "planner '" + planner.name + "' does not keep locked stages; auto does"};
  };
  return {name, plan, planner.shares};
}

PlannerCall::PlannerCall(const PlanningJob& of, const ChosenOrders& orders, const SearchOptions& options,
                         bool with_bound)
    : job(of),
      problem(problem_of(of, orders)),
      wants_bound(with_bound),
      pool(options.threads),
      watch(options.progress) {
  context.pool = &pool;
  context.cancelled = options.cancelled;
  context.watch = &watch;
}

void PlannerCall::run(const std::function<void()>& planners) {
  if (!wants_bound) return planners();
  pool.for_each(2, [&](std::size_t i) {
    if (i == 1) return planners();
    any_bound = any_bound_of(job, Bound::Scope::kOneSize);
    watch.bounded(any_bound.time);
  });
}

Shortage PlannerCall::explain(NamedPlanner maker, const OrderRule& rule,
                              const std::vector<std::uint32_t>& shares, const Plan& closest) const {
  if (shares.size() > 1) maker = with_early_ones(std::move(maker), rule);
  const std::uint64_t all = std::accumulate(shares.begin(), shares.end(), std::uint64_t{0});
  Context again;
  again.pool = context.pool;
  again.cancelled = context.cancelled;
  again.budget.max_states =
      all == 0 ? context.budget.max_states : context.budget.max_states / all * maker.shares;
  return explain_shortage(problem, maker, again, closest);
}

Planned PlannerCall::checked_and_judged(const std::string& planner, Outcome found,
                                        const ChosenOrders& schedule) const {
  Planned planned{
      .planner = planner, .outcome = std::move(found), .judged = {}, .shortage = {}, .warnings = {}};
  Outcome& outcome = planned.outcome;
  if (!outcome.plan) return planned;
  if (const auto* placement = std::get_if<Placement>(&*outcome.plan)) {
    const std::vector<std::string> violations = check_placement(job.graph, job.cluster, *placement);
    ESP_CHECK(violations.empty(), planner, violations.front());
    try {
      Planned placed = plan_placement(job, *placement, schedule);
      planned.judged = std::move(placed.judged);
      planned.warnings = std::move(placed.warnings);
    } catch (const InputError& error) {
      outcome.status = Status::kUnsupported;
      outcome.why = "planner '" + planner + "': " + error.what();
      outcome.plan.reset();
    }
    return planned;
  }
  auto* plan = std::get_if<PipelinePlan>(&*outcome.plan);
  const std::vector<std::string> violations = check_plan(job.graph, job.cluster, *plan);
  ESP_CHECK(violations.empty(), planner, violations.front());
  if (const std::optional<std::string> broken = broken_pin(job, *plan)) {
    outcome.status = Status::kUnsupported;
    outcome.why = "planner '" + planner + "' does not keep " + *broken;
    outcome.plan.reset();
    return planned;
  }
  if (schedule.for_one_plan()) {
    try {
      *plan = with_own_orders(job, std::move(*plan), schedule);
    } catch (const InputError& error) {
      outcome.status = Status::kUnsupported;
      outcome.why = std::string("the orders do not fit the plan that it made: ") + error.what();
      outcome.plan.reset();
      return planned;
    }
  }
  const bool within = !wants_bound || scope_of(*plan, job.training) == any_bound.scope;
  planned.judged = judge(job, *plan, within ? any_bound : any_bound_of(job, *plan));
  planned.warnings = semantic_warnings(job.graph, *plan);
  return planned;
}

}  // namespace espalier
