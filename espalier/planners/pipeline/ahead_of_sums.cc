#include "espalier/planners/pipeline/ahead_of_sums.h"

#include <algorithm>
#include <set>
#include <utility>

namespace espalier {
namespace {

constexpr std::uint32_t kAhead = 8;  // micro-batches
constexpr int kStepsAhead = 4;
constexpr std::uint64_t kPartOfTasks = 4;  // of the budget

// With so many more in flight wherever stages hold more than that in `plan`; nothing if none of them can.
std::optional<PipelinePlan> further_ahead(PipelinePlan ahead, const PipelinePlan& plan, std::uint32_t than) {
  bool some = false;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    Stage& stage = ahead.stages[s];
    if (plan.stages[s].in_flight <= than) continue;
    const std::uint32_t share = stage.largest_share();
    some = some || stage.in_flight < share;
    stage.in_flight = std::max(stage.in_flight, std::min(stage.in_flight + kAhead, share));
  }
  return some ? std::optional(std::move(ahead)) : std::nullopt;
}

}  // namespace

std::uint64_t go_ahead_of_sums(const Problem& problem, const PipelinePlan& plan, Duration fastest,
                               std::optional<Duration> estimate, std::uint64_t most_tasks, Judge& judge,
                               const Context& context) {
  const OrderRule* const rule = plan.orders.rule();
  if (!rule || rule->kind != ScheduleKind::kOneFOneB) return 0;
  std::set<std::uint32_t> held;  // by replicated stages
  for (const Stage& stage : plan.stages) {
    if (stage.replicas.size() > 1) held.insert(stage.in_flight);
  }
  std::uint64_t each = 0;
  for (const Stage& stage : plan.stages) each += tasks_of_stage(problem.training.batch, stage.micro_batch);
  std::uint64_t simulated = 0;
  for (const std::uint32_t than : held) {
    PipelinePlan best = plan;
    for (int step = 0; step < kStepsAhead; ++step) {
      std::optional<PipelinePlan> ahead = further_ahead(best, plan, than);
      if (!ahead || simulated + each > most_tasks || context.stop()) break;
      simulated += each;
      const Verdict verdict = judge.consider(Plan(*ahead), estimate);
      if (!verdict.fits() || verdict.iteration >= fastest) break;
      fastest = verdict.iteration;
      best = *std::move(ahead);
    }
  }
  return simulated;
}

void let_best_go_ahead_of_sums(const Problem& problem, Judge& judge, const Context& context) {
  const std::optional<Duration> fastest = judge.best();
  if (!fastest) return;
  const Outcome outcome = judge.outcome();
  const auto* plan = outcome.plan ? std::get_if<PipelinePlan>(&*outcome.plan) : nullptr;
  if (!plan) return;
  go_ahead_of_sums(problem, *plan, *fastest, outcome.estimate, context.budget.max_states / kPartOfTasks,
                   judge, context);
}

}  // namespace espalier
