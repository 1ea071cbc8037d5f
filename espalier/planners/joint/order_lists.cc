#include "espalier/planners/joint/order_lists.h"

#include <algorithm>

#include "espalier/planners/orders/search.h"
#include "espalier/planners/pipeline/looped.h"

namespace espalier::joint {
namespace {

constexpr std::size_t kPlans = 3;
constexpr std::int64_t kLeastGain = 100;  // 1/100 of the step
// What the search begins with, about so many orders, is made whatever its budget.
constexpr std::uint64_t kBeginnings = 16;

// Those that differ in more than their rules, the first of each.
std::vector<Proposal> apart_from_rules(std::span<const Proposal> plans) {
  std::vector<Proposal> result;
  std::vector<std::uint64_t> met;
  for (Proposal plan : plans) {
    const OrderRule rule = plan.schedule;
    plan.schedule = OrderRule();
    const std::uint64_t signature = signature_of(plan);
    if (std::find(met.begin(), met.end(), signature) != met.end()) continue;
    met.push_back(signature);
    plan.schedule = rule;
    result.push_back(std::move(plan));
    if (result.size() == kPlans) break;
  }
  return result;
}

// The plan with the orders that were found for it; nothing if they do not fit, or the budget is too small.
struct Listed {
  std::optional<PipelinePlan> plan;
  Duration iteration;
};

Listed with_lists(const Space& space, const Proposal& proposal, Context& context) {
  const Problem& problem = space.problem();
  const std::uint64_t charge = charge_of(space, proposal);
  const std::uint64_t left = context.left();
  if (left < 2 * kBeginnings * charge) return {};
  const auto runs = problem.oracle->rules().complete(proposal.stages, problem.training.batch,
                                                     proposal.micro_batch, proposal.schedule);
  if (!runs) return {};
  PipelinePlan plan = spelled_out(problem.graph, *runs);
  const StagedModel model =
      stage_model(problem.graph, problem.cluster, problem.costs, problem.training, plan);
  const std::uint64_t steps =
      std::min<std::uint64_t>(left - kBeginnings * charge, OrderSearchOptions().max_steps);
  context.take_states(kBeginnings * charge + steps);
  SearchedOrder found =
      search_order(model, problem.cluster, {.max_steps = steps, .seed = 1, .halves = space.halves()});
  if (!found.lists || found.evaluation.overflow) return {};
  plan.orders = Orders(std::move(*found.lists));
  const std::vector<std::uint32_t> limits = in_flight_limits(plan);
  for (std::size_t s = 0; s < limits.size(); ++s) plan.stages[s].in_flight = limits[s];
  return {std::move(plan), found.evaluation.iteration};
}

void consider_if_worth_it(const Plan& plan, Duration iteration, Judge& judge) {
  const std::optional<Duration> best = judge.best();
  if (best && iteration <= *best - *best / kLeastGain) judge.consider(plan);
}

}  // namespace

void search_lists(const Space& space, std::span<const Proposal> plans, Judge& judge, Context& context) {
  const std::vector<Proposal> some = apart_from_rules(plans);
  std::vector<Listed> listed(some.size());
  context.for_each(some.size(),
                   [&](std::size_t i, Context& own) { listed[i] = with_lists(space, some[i], own); });
  for (const Listed& each : listed) {
    if (each.plan) consider_if_worth_it(Plan(*each.plan), each.iteration, judge);
  }
}

void try_loops(const Space& space, Judge& judge, const Context& context) {
  const Problem& problem = space.problem();
  if (!problem.locked.empty() || !problem.pins.empty()) return;
  Context own = context;
  own.states = 0;
  own.budget_spent = false;
  own.watch = nullptr;
  const LoopedOptions options{.briefly = true, .may_split = space.halves() == Halves::kMay};
  const Outcome laid = looped(problem, options, own);
  if (laid.plan) {
    consider_if_worth_it(*laid.plan, Judge(problem, own).consider(*laid.plan).iteration, judge);
  }
}

}  // namespace espalier::joint
