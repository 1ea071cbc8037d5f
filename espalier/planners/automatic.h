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

// Every planner's outcome, simulated under one model, in the order given.
std::vector<Candidate> run_all(const Problem& problem, const std::vector<NamedPlanner>& planners,
                               Context& context);

// The fastest feasible one, the first of equals; `why` says which planner and how far the next was. If none
// is feasible, the reason that needs the smallest change.
Outcome automatic(const Problem& problem, const std::vector<NamedPlanner>& planners, Context& context);

}  // namespace espalier
