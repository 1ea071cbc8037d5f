#include "espalier/planners/joint/joint.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "espalier/bound/bound.h"
#include "espalier/planners/joint/exhaust.h"
#include "espalier/planners/joint/order_lists.h"
#include "espalier/planners/joint/search.h"

namespace espalier {
namespace {

constexpr std::uint64_t kPartOfBudget = 3;  // that improving takes; each planner has all of it
constexpr std::uint64_t kPartOfOrders = 5;  // of that, which lists of orders take: 1/5
constexpr std::uint64_t kFewPlans = 8'000;  // of a problem whose plans are all judged
constexpr std::size_t kFastest = 6;         // of them from which the search begins
// Where not all plans were judged, what was found must be faster by 1/2000 of a step than the plan that the
// search began with: stages that are cut and moved for less are not worth reading.
constexpr std::int64_t kWorthwhile = 2'000;

// As the search sees it, without stage edges that carry no data, and so with light joins apart.
void add_starts(const joint::Space& space, const PipelinePlan& plan, std::vector<Proposal>& starts) {
  std::optional<Proposal> start = joint::proposal_of(space, plan);
  if (!start) return;
  starts.push_back(*start);
  for (StageDraft& stage : start->stages) {
    if (stage.locked_as.empty()) stage.after.clear();
  }
  std::optional<Proposal> apart = joint::with_light_joins_apart(space, *start);
  if (*start != starts.back()) starts.push_back(std::move(*start));
  if (apart) starts.push_back(std::move(*apart));
}

// That no plan of one size beats, by size.
std::vector<Duration> bounds_of(const joint::Space& space) {
  const Problem& problem = space.problem();
  std::vector<Duration> bounds;
  for (const BatchSize size : space.sizes()) {
    Training training = problem.training;
    training.micro_batches = {size};
    bounds.push_back(
        plan_bound(problem.graph, problem.cluster, problem.costs, training, Bound::Scope::kOneSize).time);
  }
  return bounds;
}

// "joint search: 3.6 ms simulated, from 4.2 ms (branches, …)"
std::string faster_text(Duration now, std::optional<Duration> before, const std::string& began_with) {
  return "joint search: " + to_text(now) + " simulated, " +
         (before ? "from " + to_text(*before) + (began_with.empty() ? "" : " (" + began_with + ")")
                 : "where no other planner's plan fits");
}

// What is faster than `found`, of all that the plans lead to; they need not fit.
Outcome searched(const Problem& problem, const std::vector<const PipelinePlan*>& plans, Outcome found,
                 const JointOptions& options, Context& context) {
  const std::uint64_t all = context.budget.max_states;
  const bool lists = options.orders == joint::OrdersMay::kChange;
  if (lists) context.budget.max_states -= all / kPartOfOrders;
  Judge judge(problem, context);
  for (const PipelinePlan* plan : plans) judge.consider(*plan);
  const std::optional<Duration> before = judge.best();
  const joint::Space space(problem);
  std::vector<Proposal> starts;
  for (const PipelinePlan* plan : plans) add_starts(space, *plan, starts);
  bool all_judged = false;
  if (!starts.empty()) {
    const OrderRule schedule = starts.front().schedule;
    for (Proposal& plan : joint::exhaust(space, schedule, kFewPlans, kFastest, judge, context)) {
      starts.push_back(std::move(plan));
      all_judged = true;
    }
  }
  const std::vector<Duration> bounds = bounds_of(space);
  const std::vector<Proposal> best =
      joint::search(space, starts, {.orders = options.orders, .bounds = bounds}, judge, context).best;
  if (lists && judge.best() && *judge.best() > *std::min_element(bounds.begin(), bounds.end())) {
    Context own = context;
    own.states = 0;
    own.budget_spent = false;
    own.budget.max_states = all / kPartOfOrders;
    joint::search_lists(space, best, judge, own);
    context.states += own.states;
  }
  Outcome outcome = judge.outcome();
  const std::int64_t worthwhile = before && !all_judged ? before->count() / kWorthwhile : 0;
  if (!outcome.plan || (before && *judge.best() + nanoseconds(worthwhile) >= *before)) {
    found.stats += outcome.stats;
    if (outcome.plan) found.choices = std::move(outcome.choices);
    found.interrupted = found.interrupted || outcome.interrupted;
    return found;
  }
  const std::string began_with = outcome.interrupted ? "" : found.why;
  outcome.why = (outcome.interrupted ? "interrupted: " : "") + faster_text(*judge.best(), before, began_with);
  outcome.stats += found.stats;
  return outcome;
}

// The pipeline of an outcome: the plan, else the one that came closest; null if there is none.
const PipelinePlan* pipeline_of(const Outcome& outcome) {
  if (outcome.plan) return std::get_if<PipelinePlan>(&*outcome.plan);
  return outcome.closest ? outcome.closest->pipeline() : nullptr;
}

}  // namespace

Outcome joint_search(const Problem& problem, const std::vector<NamedPlanner>& planners,
                     const JointOptions& options, Context& context) {
  Context first = context, second = context;
  second.budget.max_states = context.budget.max_states / kPartOfBudget;
  std::uint64_t shares = 0;
  for (const NamedPlanner& planner : planners) shares += planner.shares;
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max() / std::max<std::uint64_t>(1, shares);
  first.budget.max_states = std::min(context.budget.max_states, most) * shares;
  first.weight = second.weight = context.weight / 2;
  const std::vector<Candidate> candidates = run_all(problem, planners, first);
  context.states += first.states;
  Outcome fastest = fastest_of(candidates);
  if (fastest.interrupted || !pipeline_of(fastest)) return fastest;
  std::vector<const PipelinePlan*> plans;
  for (const Candidate& candidate : candidates) {
    const PipelinePlan* const plan = pipeline_of(candidate.outcome);
    if (plan) plans.push_back(plan);
    for (const PipelinePlan& other : candidate.outcome.of_other_sizes) plans.push_back(&other);
  }
  Outcome outcome = searched(problem, plans, std::move(fastest), options, second);
  context.states += second.states;
  return outcome;
}

Outcome improved(const Problem& problem, Outcome found, const JointOptions& options, Context& context) {
  const PipelinePlan* const plan = pipeline_of(found);
  if (!plan || found.interrupted) return found;
  const PipelinePlan start = *plan;
  Context own = context;
  own.states = 0;
  own.budget.max_states = context.budget.max_states / kPartOfBudget;
  Outcome outcome = searched(problem, {&start}, std::move(found), options, own);
  context.states += own.states;
  return outcome;
}

}  // namespace espalier
