#include "espalier/planners/planner.h"

namespace espalier {

std::string_view to_text(Status status) {
  switch (status) {
    case Status::kFeasible:
      return "feasible";
    case Status::kInfeasible:
      return "infeasible";
    case Status::kUnsupported:
      return "unsupported";
    case Status::kBudgetSpent:
      return "budget spent";
    case Status::kInterrupted:
      return "interrupted";
  }
  return "unknown";
}

Bytes sum_of(const std::vector<Excess>& excess) {
  Bytes sum;
  for (const Excess& each : excess) sum += each.by;
  return sum;
}

}  // namespace espalier
