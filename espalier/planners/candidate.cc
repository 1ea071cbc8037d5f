#include "espalier/planners/candidate.h"

#include <algorithm>
#include <map>
#include <set>

#include "espalier/base/check.h"
#include "espalier/graph/part_names.h"

namespace espalier {
namespace {

// Which draft owns each operator that is not duplicable.
constexpr std::size_t kNobody = static_cast<std::size_t>(-1);

std::vector<std::size_t> owners(const Graph& graph, const std::vector<StageDraft>& drafts) {
  std::vector<std::size_t> owner(graph.operators().size(), kNobody);
  for (std::size_t d = 0; d < drafts.size(); ++d) {
    for (const OperatorId op : drafts[d].operators) {
      if (graph.op(op).duplicable) continue;
      ESP_CHECK(owner[op.index()] == kNobody, op, d);
      owner[op.index()] = d;
    }
  }
  for (std::size_t i = 0; i < owner.size(); ++i) {
    ESP_CHECK(owner[i] != kNobody || graph.operators()[i].duplicable, i, graph.operators()[i].name);
  }
  return owner;
}

// Drafts in topological order, the smaller index first where free; empty if there is a cycle.
std::vector<std::size_t> topological(const std::vector<std::vector<std::size_t>>& before) {
  std::vector<std::size_t> order;
  std::vector<char> done(before.size(), 0);
  while (order.size() < before.size()) {
    bool advanced = false;
    for (std::size_t d = 0; d < before.size() && !advanced; ++d) {
      if (done[d] ||
          !std::all_of(before[d].begin(), before[d].end(), [&](std::size_t p) { return done[p] != 0; }))
        continue;
      done[d] = 1;
      order.push_back(d);
      advanced = true;
    }
    if (!advanced) return {};
  }
  return order;
}

void attach_duplicables(const Graph& graph, std::vector<Stage>& stages) {
  std::vector<char> held(graph.operators().size(), 0);
  for (Stage& stage : stages) {
    std::vector<OperatorId> stack = stage.operators;
    std::vector<char> mine(graph.operators().size(), 0);
    for (const OperatorId op : stage.operators) mine[op.index()] = 1;
    while (!stack.empty()) {
      const OperatorId op = stack.back();
      stack.pop_back();
      for (const OperatorId p : graph.predecessors(op)) {
        if (!graph.op(p).duplicable || mine[p.index()]) continue;
        mine[p.index()] = 1;
        stage.operators.push_back(p);
        stack.push_back(p);
      }
    }
    std::sort(stage.operators.begin(), stage.operators.end());
    for (const OperatorId op : stage.operators) held[op.index()] = 1;
  }
  for (std::size_t i = held.size(); i-- > 0;) {  // duplicables that nobody's stage reads: with the last stage
    if (held[i]) continue;
    stages.back().operators.push_back(OperatorId(i));
  }
  std::sort(stages.back().operators.begin(), stages.back().operators.end());
}

// A plan of these drafts; only locked stages have names.
std::optional<PipelinePlan> plan_of(const Graph& graph, const std::vector<StageDraft>& drafts,
                                    BatchSize batch, BatchSize micro_batch, const OrderRule& schedule) {
  const std::vector<std::size_t> owner = owners(graph, drafts);
  std::vector<std::vector<std::size_t>> before(drafts.size());
  for (std::size_t i = 0; i < owner.size(); ++i) {
    if (owner[i] == kNobody) continue;
    for (const OperatorId p : graph.predecessors(OperatorId(i))) {
      if (owner[p.index()] != kNobody && owner[p.index()] != owner[i])
        before[owner[i]].push_back(owner[p.index()]);
    }
  }
  for (std::size_t d = 0; d < drafts.size(); ++d) {
    before[d].insert(before[d].end(), drafts[d].after.begin(), drafts[d].after.end());
    std::sort(before[d].begin(), before[d].end());
    before[d].erase(std::unique(before[d].begin(), before[d].end()), before[d].end());
  }
  const std::vector<std::size_t> order = topological(before);
  if (order.size() != drafts.size()) return std::nullopt;
  std::vector<std::size_t> place(drafts.size());
  for (std::size_t s = 0; s < order.size(); ++s) place[order[s]] = s;

  PipelinePlan plan;
  plan.batch = batch;
  plan.orders = schedule;
  const auto micro_batches = static_cast<std::uint32_t>(batch.count() / micro_batch.count());
  for (const std::size_t d : order) {
    Stage stage;
    for (const OperatorId op : drafts[d].operators) {
      if (!graph.op(op).duplicable) stage.operators.push_back(op);
    }
    const std::size_t replicas = std::min<std::size_t>(drafts[d].devices.size(), micro_batches);
    for (std::size_t r = 0; r < replicas; ++r) {
      stage.replicas.push_back({{drafts[d].devices[r]}, round_robin(micro_batches, r, replicas)});
    }
    for (const std::size_t p : before[d]) stage.after.push_back(StageId(place[p]));
    std::sort(stage.after.begin(), stage.after.end());
    stage.micro_batch = micro_batch;
    stage.name = drafts[d].locked_as;
    stage.recompute = drafts[d].recompute;
    plan.stages.push_back(std::move(stage));
  }
  attach_duplicables(graph, plan.stages);
  const std::vector<std::uint32_t> limits = in_flight_limits(plan);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) plan.stages[s].in_flight = limits[s];
  return plan;
}

// Names for the stages that have none, from their modules.
void name_stages(const Graph& graph, PipelinePlan& plan) {
  std::vector<std::vector<OperatorId>> sets;
  std::vector<std::string> given;
  for (const Stage& stage : plan.stages) {
    sets.push_back(stage.operators);
    given.push_back(stage.name);
  }
  const std::vector<std::string> names = part_names(graph, sets, given);
  for (std::size_t s = 0; s < names.size(); ++s) plan.stages[s].name = names[s];
}

}  // namespace

std::optional<PipelinePlan> complete_plan(const Graph& graph, const std::vector<StageDraft>& drafts,
                                          BatchSize batch, BatchSize micro_batch, const OrderRule& schedule) {
  auto plan = plan_of(graph, drafts, batch, micro_batch, schedule);
  if (plan) name_stages(graph, *plan);
  return plan;
}

Judge::Judge(const Problem& problem)
    : problem_(problem),
      evaluator_(problem.graph, problem.cluster, problem.costs, problem.training),
      scratch_(Evaluator::make_scratch()),
      pins_(resolve_pins(problem.graph, problem.pins)) {}

std::optional<Duration> Judge::consider(const std::vector<StageDraft>& drafts, BatchSize micro_batch,
                                        const OrderRule& schedule, std::optional<Duration> estimate) {
  if (schedule.group.size() > 1 && schedule.group.size() != drafts.size()) return std::nullopt;
  std::map<std::uint32_t, const StageDraft*> together;
  for (const StageDraft& draft : drafts) {
    const bool one_replica = draft.devices.size() > 1 && draft.locked_as.empty() &&
                             problem_.written_buffers == WrittenBuffers::kOneReplica;
    for (const OperatorId op : draft.operators) {
      if (one_replica && writes_buffer(problem_.graph, op)) return std::nullopt;
      const auto group = problem_.graph.op(op).colocation;
      if (group && together.try_emplace(*group, &draft).first->second != &draft) return std::nullopt;
      const auto& pin = pins_[op.index()];
      if (pin && !problem_.graph.op(op).duplicable &&
          (draft.devices.size() != 1 || draft.devices[0] != *pin)) {
        pin_conflict_ = true;
        return std::nullopt;
      }
    }
  }
  const auto plan = plan_of(problem_.graph, drafts, problem_.training.batch, micro_batch, schedule);
  return plan ? consider(*plan, estimate) : std::nullopt;
}

std::optional<Duration> Judge::consider(const PipelinePlan& plan, std::optional<Duration> estimate) {
  ++evaluations_;
  Evaluation evaluation = evaluator_.evaluate(plan, *scratch_);
  if (!evaluation.can_run()) return std::nullopt;
  if (evaluation.overflow) {
    note_overflow(plan, evaluation);
    return std::nullopt;
  }
  const auto peak = [](const Evaluation& e) {
    Bytes most;
    for (const MemoryByCategory& m : e.peak) most = std::max(most, m.total());
    return most;
  };
  const auto key = [&](const PipelinePlan& p, const Evaluation& e) {
    return std::tuple(e.iteration, peak(e), p.stages.size());
  };
  const Duration iteration = evaluation.iteration;
  if (!best_ || key(plan, evaluation) < key(*best_, best_evaluation_)) {
    best_ = plan;
    best_estimate_ = estimate;
    best_evaluation_ = std::move(evaluation);
  }
  return iteration;
}

void Judge::note_overflow(const PipelinePlan& plan, const Evaluation& evaluation) {
  Bytes lack, worst;
  std::size_t fullest = 0, short_of_memory = 0;
  for (std::size_t d = 0; d < evaluation.peak.size(); ++d) {
    const Bytes excess = evaluation.peak[d].total() - problem_.cluster.devices()[d].memory;
    if (excess <= Bytes()) continue;
    ++short_of_memory;
    lack += excess;
    if (excess > worst) worst = excess, fullest = d;
  }
  if (closest_lack_ && *closest_lack_ <= lack) return;
  closest_lack_ = lack;
  const Device& device = problem_.cluster.devices()[fullest];
  closest_why_ = "nothing fits: the closest plan, with micro-batches of " +
                 std::to_string(plan.stages.front().micro_batch.count()) + ", needs " +
                 to_text(evaluation.peak[fullest].total()) + " on " + device.name + ", which has " +
                 to_text(device.memory) + "; " + to_text(worst) + " more there would do";
  if (short_of_memory > 1) {
    closest_why_ += ", with " + to_text(lack - worst) + " more on " + std::to_string(short_of_memory - 1) +
                    (short_of_memory == 2 ? " other device" : " other devices");
  }
}

Outcome Judge::outcome(const Context& context) const {
  Outcome outcome;
  outcome.stats = {.states = context.states, .evaluations = evaluations_};
  const std::string budget =
      "the budget of " + std::to_string(context.budget.max_states) + " states was spent";
  if (best_) {
    outcome.status = Status::kFeasible;
    PipelinePlan best = *best_;
    name_stages(problem_.graph, best);
    outcome.plan = std::move(best);
    outcome.estimate = best_estimate_;
    if (context.budget_spent) outcome.why = budget + ": a larger --budget may find a better plan";
  } else if (context.budget_spent) {
    outcome.status = Status::kBudgetSpent;
    outcome.why = budget + " before a plan was found; a larger --budget may find one";
  } else if (!closest_why_.empty()) {
    outcome.status = Status::kInfeasible;
    outcome.why = closest_why_;
  } else {
    outcome.status = Status::kInfeasible;
    outcome.why =
        pin_conflict_
            ? "no plan in this planner's space puts every pinned operator on its device; relax a --pin"
            : "this planner found no legal plan for this graph and cluster";
  }
  return outcome;
}

std::vector<BatchSize> usable_micro_batches(const Problem& problem) {
  std::vector<BatchSize> usable;
  const BatchRange range = problem.graph.batch();
  for (const BatchSize b : problem.training.micro_batches) {
    if (b >= range.min && b <= range.max && b.count() > 0 && problem.training.batch.count() % b.count() == 0)
      usable.push_back(b);
  }
  if (usable.empty()) {
    throw InputError("no micro-batch size of " + std::to_string(range.min.count()) +
                     (range.fixed() ? "" : " to " + std::to_string(range.max.count())) +
                     " samples, which is what the model takes, divides a batch of " +
                     std::to_string(problem.training.batch.count()));
  }
  return usable;
}

}  // namespace espalier
