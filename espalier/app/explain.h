#pragma once

// Why a problem has no plan that fits, and what would do: the shortage of the closest plan, with remedies
// that were planned again by the planner that made it.

#include "espalier/planners/automatic.h"
#include "espalier/planners/shortage.h"

namespace espalier {

// `planner` made `closest`. Each remedy takes another call of it, each with a copy of `again`.
Shortage explain_shortage(const Problem& problem, const NamedPlanner& planner, const Context& again,
                          const Plan& closest);

}  // namespace espalier
