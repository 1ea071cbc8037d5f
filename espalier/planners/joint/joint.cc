#include "espalier/planners/joint/joint.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <span>
#include <utility>

#include "espalier/bound/bound.h"
#include "espalier/planners/joint/exhaust.h"
#include "espalier/planners/joint/kinds_in_turn.h"
#include "espalier/planners/joint/order_lists.h"
#include "espalier/planners/joint/search.h"
#include "espalier/planners/repeated.h"

namespace espalier {
namespace {

constexpr std::uint64_t kPartOfBudget = 4;  // that improving takes
// Each planner has a 32nd of the budget, at least so many states, and so many for each device, if there are.
// More states give the search other beginnings, not better ones: with all of the budget for each plans are as
// fast, within what other numbers drawn change, and take half as long again (docs/decisions.md).
constexpr std::uint64_t kPartOfPlanner = 32;
constexpr std::uint64_t kLeastOfPlanner = 200'000, kLeastForADevice = 3'000;
constexpr std::uint64_t kPartOfOrders = 5;  // of that, which lists of orders take: 1/5
constexpr std::uint64_t kPartOfParts = 4;   // of the whole, that the plans of a division's parts take
constexpr std::uint64_t kFewPlans = 8'000;  // of a problem whose plans are all judged
constexpr std::size_t kFastest = 6;         // of them from which the search begins
// Where not all plans were judged, what was found must be faster by 1/2000 of a step than the plan that the
// search began with: stages that are cut and moved for less are not worth reading.
constexpr std::int64_t kWorthwhile = 2'000;

std::uint64_t budget_of_planner(std::uint64_t whole, std::size_t devices) {
  return std::max(whole / kPartOfPlanner,
                  std::min(whole, std::max(kLeastOfPlanner, kLeastForADevice * devices)));
}

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
std::vector<Duration> bounds_of(const joint::Space& space, ThreadPool* pool) {
  const Problem& problem = space.problem();
  std::vector<Duration> bounds(space.sizes().size());
  on_threads(pool, bounds.size(), [&](std::size_t i) {
    Training training = problem.training;
    training.micro_batches = {space.sizes()[i]};
    bounds[i] =
        plan_bound(problem.graph, problem.cluster, problem.costs, training, Bound::Scope::kOneSize).time;
  });
  return bounds;
}

// "joint search: 3.6 ms simulated, from 4.2 ms (branches, …)"
std::string faster_text(Duration now, std::optional<Duration> before, const std::string& began_with) {
  return "joint search: " + to_text(now) + " simulated, " +
         (before ? "from " + to_text(*before) + (began_with.empty() ? "" : " (" + began_with + ")")
                 : "where no other planner's plan fits");
}

// What is faster than `found`, of all that the plans lead to, and the `others`; they need not fit.
Outcome searched(const Problem& problem, const std::vector<const PipelinePlan*>& plans,
                 const std::vector<PipelinePlan>& others, Outcome found, const JointOptions& options,
                 Context& context) {
  const std::uint64_t all = context.budget.max_states;
  const bool lists = problem.lists && options.orders == joint::OrdersMay::kChange;
  if (lists) context.budget.max_states -= all / kPartOfOrders;
  Judge judge(problem, context);
  for (const PipelinePlan* plan : plans) judge.consider(*plan);
  const std::optional<Duration> before = judge.best();
  for (const PipelinePlan& plan : others) judge.consider(plan);
  const joint::Space space(problem);
  std::vector<Proposal> starts;
  for (const PipelinePlan* plan : plans) add_starts(space, *plan, starts);
  for (const PipelinePlan& plan : others) add_starts(space, plan, starts);
  bool all_judged = false;
  if (!starts.empty()) {
    const OrderRule schedule = starts.front().schedule;
    std::ranges::move(joint::kinds_in_turn(space, schedule), std::back_inserter(starts));
    for (Proposal& plan : joint::exhaust(space, schedule, kFewPlans, kFastest, judge, context)) {
      starts.push_back(std::move(plan));
      all_judged = true;
    }
  }
  const std::vector<Duration> bounds = bounds_of(space, context.pool);
  const std::vector<Proposal> best =
      joint::search(space, starts, {.orders = options.orders, .bounds = bounds, .guide = options.guide},
                    judge, context)
          .best;
  if (lists && judge.best() && *judge.best() > *std::min_element(bounds.begin(), bounds.end())) {
    Context own = context;
    own.states = 0;
    own.budget_spent = false;
    own.budget.max_states = all / kPartOfOrders;
    joint::search_lists(space, best, judge, own);
    joint::try_loops(space, judge, context);
    context.states += own.states;
  }
  Outcome outcome = judge.outcome();
  const std::int64_t worthwhile = before && !all_judged ? before->count() / kWorthwhile : 0;
  if (!outcome.plan || (before && *judge.best() + nanoseconds(worthwhile) >= *before)) {
    found.stats += outcome.stats;
    if (outcome.plan) {
      found.choices = std::move(outcome.choices);
      std::erase_if(found.choices, [&](const OtherChoice& c) { return c.price.iteration <= *before; });
    }
    found.interrupted = found.interrupted || outcome.interrupted;
    return found;
  }
  const std::string began_with = outcome.interrupted ? "" : found.why;
  outcome.why = (outcome.interrupted ? "interrupted: " : "") + faster_text(*judge.best(), before, began_with);
  outcome.stats += found.stats;
  return outcome;
}

// How a cluster is divided, and its parts are in turn.
struct DividedCluster {
  Division division;
  EqualParts parts;
};

// A problem's cluster, divided in these ways as far as it can be: the same parts once.
std::vector<DividedCluster> divided(const Problem& problem, const JointOptions& options,
                                    std::span<const Division> divisions) {
  std::vector<DividedCluster> result;
  for (const Division division : divisions) {
    std::optional<EqualParts> parts = equal_parts(problem.cluster, division, options.least_of_a_part);
    if (!parts || (!result.empty() && result.back().parts.copies == parts->copies)) continue;
    result.push_back({division, *std::move(parts)});
  }
  return result;
}

Outcome search_whole(const Problem& problem, const std::vector<NamedPlanner>& planners,
                     const JointOptions& options, std::span<const DividedCluster> clusters, Context& context);

// Plans of one of the cluster's equal parts, found like those of the cluster, by few planners, on all of its
// parts.
PlansOfParts plans_of_parts(const Problem& problem, std::vector<NamedPlanner> planners,
                            const JointOptions& options, const DividedCluster& cluster, Context& context) {
  std::erase_if(planners, [&](const NamedPlanner& each) {
    return std::find(options.of_parts.begin(), options.of_parts.end(), each.name) == options.of_parts.end();
  });
  return plans_of_parts(problem, cluster.parts, [&](const Problem& part) {
    const std::vector<DividedCluster> smaller = divided(part, options, {&cluster.division, 1});
    return search_whole(part, planners, options, smaller, context);
  });
}

Outcome search_whole(const Problem& problem, const std::vector<NamedPlanner>& planners,
                     const JointOptions& options, std::span<const DividedCluster> clusters,
                     Context& context) {
  Context first = context, second = context;
  second.budget.max_states = context.budget.max_states / kPartOfBudget;
  std::uint64_t shares = 0;
  for (const NamedPlanner& planner : planners) shares += planner.shares;
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max() / std::max<std::uint64_t>(1, shares);
  first.budget.max_states =
      std::min(budget_of_planner(context.budget.max_states, problem.cluster.devices().size()), most) * shares;
  const std::size_t phases = clusters.empty() ? 2 : 3;
  first.weight = second.weight = context.weight / static_cast<double>(phases);
  std::vector<PlansOfParts> of_parts(clusters.size());
  std::vector<Context> own(clusters.size(), context);
  PlannerCalls calls;
  for (std::size_t i = 0; i < clusters.size(); ++i) {
    own[i].states = 0;
    own[i].watch = nullptr;  // it would take a part's plans for the cluster's
    own[i].budget.max_states = context.budget.max_states / kPartOfParts;
    calls.beside.emplace_back([&, i] {
      Context heard = context;
      heard.planner = clusters[i].division == Division::kOutermost ? "equal parts" : "equal parts of hosts";
      heard.weight = first.weight / static_cast<double>(clusters.size());
      heard.report(0);
      of_parts[i] = plans_of_parts(problem, planners, options, clusters[i], own[i]);
      if (heard.watch) heard.watch->count(of_parts[i].stats);
      heard.report(1);
    });
  }
  const std::vector<Candidate> candidates = run_all(problem, planners, first, calls);
  context.states += first.states;
  Outcome fastest = fastest_of(candidates);
  if (fastest.interrupted || !fastest.pipeline()) return fastest;
  std::vector<const PipelinePlan*> plans;
  for (const Candidate& candidate : candidates) {
    const PipelinePlan* const plan = candidate.outcome.pipeline();
    if (plan) plans.push_back(plan);
    for (const PipelinePlan& other : candidate.outcome.of_other_sizes) plans.push_back(&other);
  }
  std::vector<PipelinePlan> repeated;
  for (std::size_t i = 0; i < clusters.size(); ++i) {
    std::ranges::move(of_parts[i].plans, std::back_inserter(repeated));
    fastest.stats += of_parts[i].stats;
    context.states += own[i].states;
  }
  Outcome outcome = searched(problem, plans, repeated, std::move(fastest), options, second);
  context.states += second.states;
  return outcome;
}

}  // namespace

Outcome joint_search(const Problem& problem, const std::vector<NamedPlanner>& planners,
                     const JointOptions& options, Context& context) {
  static constexpr std::array kBoth{Division::kOutermost, Division::kInnermost};
  std::vector<DividedCluster> clusters;
  if (may_be_divided(problem)) clusters = divided(problem, options, kBoth);
  return search_whole(problem, planners, options, clusters, context);
}

Outcome improved(const Problem& problem, Outcome found, const JointOptions& options, Context& context) {
  const PipelinePlan* const plan = found.pipeline();
  if (!plan || found.interrupted) return found;
  const PipelinePlan start = *plan;
  Context own = context;
  own.states = 0;
  own.budget.max_states = context.budget.max_states / kPartOfBudget;
  Outcome outcome = searched(problem, {&start}, {}, std::move(found), options, own);
  context.states += own.states;
  return outcome;
}

}  // namespace espalier
