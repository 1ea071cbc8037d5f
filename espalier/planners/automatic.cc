#include "espalier/planners/automatic.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "espalier/planners/candidate.h"

namespace espalier {
namespace {

// The budget of each planner: its shares of the whole, rounded down, what is left to the first.
std::vector<std::uint64_t> deal_budget(const std::vector<NamedPlanner>& planners, std::uint64_t whole) {
  std::uint64_t shares = 0;
  for (const NamedPlanner& planner : planners) shares += planner.shares;
  std::vector<std::uint64_t> parts;
  std::uint64_t left = whole;
  for (const NamedPlanner& planner : planners) {
    parts.push_back(shares == 0 ? 0 : whole / shares * planner.shares);
    left -= parts.back();
  }
  for (std::size_t i = 0; i < parts.size() && left > 0; ++i) {
    if (planners[i].shares == 0) continue;
    parts[i] += left;
    left = 0;
  }
  return parts;
}

std::optional<Duration> simulated(const Problem& problem, const Outcome& outcome) {
  if (!outcome.plan) return std::nullopt;
  const auto* pipeline = std::get_if<PipelinePlan>(&*outcome.plan);
  if (!pipeline) return std::nullopt;
  const Oracle::Loan scratch(*problem.oracle);
  const Evaluation evaluation = problem.oracle->evaluator().evaluate(*pipeline, *scratch);
  return evaluation.can_run() ? std::optional(evaluation.iteration) : std::nullopt;
}

Candidate start_of(const Problem& problem, Context own) {
  own.states = 0;
  own.budget_spent = false;
  Judge judge(problem, own);
  const bool fits = judge.consider(*problem.start).fits();
  Candidate candidate{"start", judge.outcome(), judge.best()};
  candidate.outcome.why = fits ? "" : "the plan to start from does not fit";
  return candidate;
}

}  // namespace

const Candidate* closest_of(const std::vector<Candidate>& candidates) {
  const Candidate* closest = nullptr;
  for (const Candidate& candidate : candidates) {
    const Outcome& outcome = candidate.outcome;
    if (outcome.status != Status::kInfeasible || !outcome.closest) continue;
    if (!closest || outcome.closest->lack() < closest->outcome.closest->lack()) closest = &candidate;
  }
  return closest;
}

std::vector<Candidate> run_all(const Problem& problem, const std::vector<NamedPlanner>& planners,
                               Context& context, const PlannerCalls& calls) {
  const std::vector<std::uint64_t> budgets = deal_budget(planners, context.budget.max_states);
  std::vector<Candidate> candidates;
  std::vector<Context> own(planners.size(), context);
  for (std::size_t i = 0; i < planners.size(); ++i) {
    candidates.push_back(
        {planners[i].name,
         {.status = Status::kInterrupted, .why = "interrupted before it began", .interrupted = true},
         std::nullopt});
    own[i].budget.max_states = budgets[i];
    own[i].states = 0;
    own[i].budget_spent = false;
    own[i].planner = planners[i].name;
    own[i].weight = context.weight / static_cast<double>(planners.size());
  }
  std::vector<std::size_t> in_turn(planners.size());
  std::iota(in_turn.begin(), in_turn.end(), std::size_t{0});
  std::stable_partition(in_turn.begin(), in_turn.end(), [&](std::size_t i) { return planners[i].early; });
  on_threads(context.pool, planners.size() + calls.beside.size(), [&](std::size_t turn) {
    if (context.stop()) return;
    if (turn >= planners.size()) return calls.beside[turn - planners.size()]();
    const std::size_t i = in_turn[turn];
    own[i].report(0);
    if (calls.begun) calls.begun(i);
    candidates[i].outcome = planners[i].plan(problem, own[i]);
    candidates[i].simulated = simulated(problem, candidates[i].outcome);
    if (calls.ended) calls.ended(i);
    own[i].report(1);
  });
  for (const Context& each : own) context.states += each.states;
  if (problem.start) candidates.push_back(start_of(problem, context));
  return candidates;
}

Outcome fastest_of(std::vector<Candidate> candidates) {
  Candidate* best = nullptr;
  const Candidate* second = nullptr;
  SearchStats stats;
  bool interrupted = false;
  for (Candidate& candidate : candidates) {
    stats += candidate.outcome.stats;
    interrupted = interrupted || candidate.outcome.interrupted;
    if (!candidate.simulated) continue;
    if (!best || *candidate.simulated < *best->simulated) {
      second = std::exchange(best, &candidate);
    } else if (!second || *candidate.simulated < *second->simulated) {
      second = &candidate;
    }
  }
  Outcome outcome;
  if (best) {
    outcome = std::move(best->outcome);
    outcome.why = "planner " + best->name + ": " + to_text(*best->simulated) + " simulated";
    if (second) outcome.why += "; next is " + second->name + " with " + to_text(*second->simulated);
    if (interrupted) outcome.why = "interrupted: the best plan found so far is of " + outcome.why;
  } else if (candidates.empty()) {
    outcome.why = "no planner was asked";
  } else {
    const auto telling = std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& c) {
      return c.outcome.status == (interrupted ? Status::kInterrupted : Status::kInfeasible);
    });
    outcome = (telling != candidates.end() ? *telling : candidates.front()).outcome;
    const Candidate* closest = closest_of(candidates);
    if (closest && outcome.status == Status::kInfeasible) {
      outcome = closest->outcome;
      outcome.closest->planner = closest->name;
    }
  }
  outcome.stats = stats;
  outcome.interrupted = interrupted;
  return outcome;
}

Outcome automatic(const Problem& problem, const std::vector<NamedPlanner>& planners, Context& context) {
  return fastest_of(run_all(problem, planners, context));
}

}  // namespace espalier
