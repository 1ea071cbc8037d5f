#include "espalier/app/explain.h"

namespace espalier {

Shortage explain_shortage(const Problem& problem, const NamedPlanner& planner, const Context& again,
                          const Plan& closest) {
  Shortage shortage = shortage_of(problem, closest, planner.name);
  shortage.remedies = find_remedies(problem, closest, shortage, [&](const Problem& changed) {
    Context context = again;
    return planner.plan(changed, context);
  });
  return shortage;
}

}  // namespace espalier
