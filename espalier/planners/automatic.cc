#include "espalier/planners/automatic.h"

#include <algorithm>
#include <utility>

#include "espalier/sim/evaluator.h"

namespace espalier {

std::vector<Candidate> run_all(const Problem& problem, const std::vector<NamedPlanner>& planners,
                               Context& context) {
  const Evaluator evaluator(problem.graph, problem.cluster, problem.costs, problem.training);
  const auto scratch = Evaluator::make_scratch();
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < planners.size(); ++i) {
    context.report(static_cast<double>(i) / static_cast<double>(planners.size()), planners[i].name);
    if (context.stop()) break;
    Context own = context;  // a budget for each
    own.states = 0;
    own.budget_spent = false;
    Candidate candidate{planners[i].name, planners[i].plan(problem, own), std::nullopt};
    if (candidate.outcome.plan) {
      if (const auto* pipeline = std::get_if<PipelinePlan>(&*candidate.outcome.plan)) {
        const Evaluation evaluation = evaluator.evaluate(*pipeline, *scratch);
        if (evaluation.can_run()) candidate.simulated = evaluation.iteration;
      }
    }
    candidates.push_back(std::move(candidate));
  }
  if (problem.start) {
    if (const auto* start = std::get_if<PipelinePlan>(&*problem.start)) {
      const Evaluation evaluation = evaluator.evaluate(*start, *scratch);
      Candidate candidate{
          "start", {.status = Status::kInfeasible, .why = "the plan to start from does not fit"}, {}};
      if (evaluation.can_run() && !evaluation.overflow) {
        candidate.outcome = {.status = Status::kFeasible, .plan = *start};
        candidate.simulated = evaluation.iteration;
      }
      candidates.push_back(std::move(candidate));
    }
  }
  return candidates;
}

Outcome automatic(const Problem& problem, const std::vector<NamedPlanner>& planners, Context& context) {
  std::vector<Candidate> candidates = run_all(problem, planners, context);
  Candidate* best = nullptr;
  const Candidate* second = nullptr;
  SearchStats stats;
  for (Candidate& candidate : candidates) {
    stats.states += candidate.outcome.stats.states;
    stats.evaluations += candidate.outcome.stats.evaluations;
    if (!candidate.simulated) continue;
    if (!best || *candidate.simulated < *best->simulated) {
      second = std::exchange(best, &candidate);
    } else if (!second || *candidate.simulated < *second->simulated) {
      second = &candidate;
    }
  }
  if (!best) {
    const auto infeasible = std::find_if(candidates.begin(), candidates.end(), [](const Candidate& c) {
      return c.outcome.status == Status::kInfeasible;
    });
    Outcome outcome = infeasible != candidates.end() ? infeasible->outcome
                      : candidates.empty()           ? Outcome{.why = "no planner was asked"}
                                                     : candidates.front().outcome;
    outcome.stats = stats;
    return outcome;
  }
  Outcome outcome = std::move(best->outcome);
  outcome.stats = stats;
  outcome.why = "planner " + best->name + ": " + to_text(*best->simulated) + " simulated";
  if (second) outcome.why += "; next is " + second->name + " with " + to_text(*second->simulated);
  return outcome;
}

}  // namespace espalier
