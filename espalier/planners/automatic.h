#pragma once

// Several planners side by side, and the best of them, by simulation.

#include <functional>
#include <string>
#include <vector>

#include "espalier/planners/planner.h"

namespace espalier {

// A planner with its options already chosen: what a catalog lists.
struct NamedPlanner {
  std::string name;
  std::function<Outcome(const Problem&, Context&)> plan;
  std::uint32_t shares = 1;  // of the budget, beside others; 0: it takes no states
  bool early = false;        // begins before those that are not: soon there, so that people see a plan
};

struct Candidate {
  std::string name;
  Outcome outcome;
  std::optional<Duration> simulated;  // iteration time of its plan
};

// Every planner's outcome, simulated under one model, in the order given; behind them "start", if the problem
// has a plan to start from. Planners run at the same time on the context's pool, each with its share of the
// budget; what they return does not depend on the threads. Where the search is ended before one begins, it is
// kInterrupted.
struct PlannerCalls {
  std::function<void(std::size_t)> begun = {}, ended = {};  // around each planner, from its thread
  std::vector<std::function<void()>> beside = {};           // at the same time too, the last to begin
};
std::vector<Candidate> run_all(const Problem& problem, const std::vector<NamedPlanner>& planners,
                               Context& context, const PlannerCalls& calls = {});

// Of those that found nothing that fits, the one whose closest plan lacks least in all, the first of equals;
// null if none has a closest plan.
const Candidate* closest_of(const std::vector<Candidate>& candidates);

// The outcome of the fastest feasible one, the first of equals; `why` says which planner and how far the next
// was. If none is feasible, the outcome of closest_of, else the first reason why.
Outcome fastest_of(std::vector<Candidate> candidates);

// fastest_of run_all.
Outcome automatic(const Problem& problem, const std::vector<NamedPlanner>& planners, Context& context);

}  // namespace espalier
