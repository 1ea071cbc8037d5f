#pragma once

// The best of several planners, by simulation.

#include <functional>
#include <string>
#include <vector>

#include "espalier/planners/planner.h"

namespace espalier {

// A planner with its options already chosen: what a catalog lists.
struct NamedPlanner {
  std::string name;
  std::function<Outcome(const Problem&, Context&)> plan;
};

struct Candidate {
  std::string name;
  Outcome outcome;
  std::optional<Duration> simulated;  // iteration time of its plan
};

// Every planner's outcome, each with the whole budget, simulated under one model, in the order given; behind
// them "start", if the problem has a plan to start from.
std::vector<Candidate> run_all(const Problem& problem, const std::vector<NamedPlanner>& planners,
                               Context& context);

// The fastest feasible one, the first of equals; `why` says which planner and how far the next was. If none
// is feasible, the first reason why.
Outcome automatic(const Problem& problem, const std::vector<NamedPlanner>& planners, Context& context);

}  // namespace espalier
