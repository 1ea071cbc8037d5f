#include "espalier/planners/candidate.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <variant>

#include "espalier/base/check.h"
#include "espalier/planners/shortage.h"
#include "espalier/sim/placement_judge.h"

namespace espalier {
namespace {

constexpr std::size_t kMostChoices = 4;

using Ruling = Verdict::Ruling;
using AnyPlan = std::variant<RunPlan, PipelinePlan, Placement>;

// Smaller is better. The last part tells proposals apart, so no two are equal.
using Rank = std::tuple<Duration, Bytes, std::size_t, std::uint64_t>;

const PipelinePlan* frame_of(const AnyPlan& plan) {
  if (const auto* runs = std::get_if<RunPlan>(&plan)) return &runs->frame;
  return std::get_if<PipelinePlan>(&plan);
}

// That of all its stages; nothing for placements and where stages differ.
std::optional<BatchSize> one_size_of(const AnyPlan& plan) {
  const PipelinePlan* const frame = frame_of(plan);
  if (!frame || frame->stages.empty()) return std::nullopt;
  const BatchSize size = frame->stages.front().micro_batch;
  const bool one = std::all_of(frame->stages.begin(), frame->stages.end(),
                               [&](const Stage& stage) { return stage.micro_batch == size; });
  return one ? std::optional(size) : std::nullopt;
}

Plan spelled(const Graph& graph, const AnyPlan& plan) {
  if (const auto* runs = std::get_if<RunPlan>(&plan)) return spelled_out(graph, *runs);
  if (const auto* placement = std::get_if<Placement>(&plan)) return *placement;
  return std::get<PipelinePlan>(plan);
}

// Stages on the longest way; each stands behind those it reads from.
std::size_t depth_of(const PipelinePlan& plan) {
  std::vector<std::size_t> depth;
  for (const Stage& stage : plan.stages) {
    depth.push_back(1);
    for (const StageId before : stage.after) {
      if (before.index() + 1 < depth.size()) depth.back() = std::max(depth.back(), depth[before.index()] + 1);
    }
  }
  return depth.empty() ? 0 : *std::max_element(depth.begin(), depth.end());
}

Verdict reason(Ruling ruling, std::optional<OperatorId> op = std::nullopt) {
  Verdict verdict;
  verdict.ruling = ruling;
  verdict.op = op;
  return verdict;
}

Verdict verdict_of(const Cluster& cluster, const Evaluation& evaluation) {
  if (evaluation.deadlock) return reason(Ruling::kDeadlock);
  Verdict verdict;
  if (evaluation.forbidden) {
    verdict.ruling = Ruling::kForbidden;
    verdict.forbidden = evaluation.forbidden;
    return verdict;
  }
  verdict.iteration = evaluation.iteration;
  verdict.messages = evaluation.messages;
  for (std::size_t d = 0; d < evaluation.peak.size(); ++d) {
    const Bytes needs = evaluation.peak[d].total(), has = cluster.devices()[d].memory;
    verdict.peak = std::max(verdict.peak, needs);
    if (needs > has) verdict.excess.push_back({DeviceId(d), needs, needs - has});
  }
  if (!verdict.excess.empty()) verdict.ruling = Ruling::kTooMuchMemory;
  return verdict;
}

std::vector<DeviceId> devices_of(const Stage& stage) {
  std::vector<DeviceId> devices;
  for (const Replica& replica : stage.replicas) {
    devices.insert(devices.end(), replica.devices.begin(), replica.devices.end());
  }
  return devices;
}

std::string closest_text(const Cluster& cluster, const NearMiss& miss) {
  const auto& worst = *std::max_element(miss.excess.begin(), miss.excess.end(),
                                        [](const Excess& a, const Excess& b) { return a.by < b.by; });
  const Device& device = cluster.device(worst.device);
  const std::string what = miss.pipeline()
                               ? "plan, with micro-batches of " +
                                     std::to_string(miss.pipeline()->stages.front().micro_batch.count()) + ","
                               : "placement";
  std::string text = "nothing fits: the closest " + what + " needs " + enough_text(worst.needs) + " on " +
                     device.name + ", which has " + to_text(device.memory) + "; it lacks " +
                     enough_text(worst.by) + " there";
  const std::size_t others = miss.excess.size() - 1;
  if (others > 0) {
    text += " and " + enough_text(miss.lack() - worst.by) + " on " + std::to_string(others) +
            (others == 1 ? " other device" : " other devices");
  }
  return text;
}

}  // namespace

struct Judge::State {
  State(const Problem& p, Context& c)
      : problem(p), context(c), pins(p.graph, resolve_pins(p.graph, p.pins)) {}

  const Problem& problem;
  Context& context;
  const PinTable pins;

  mutable std::mutex mutex;  // guards what follows
  struct Kept {
    AnyPlan plan;
    Rank rank;
    std::optional<Duration> estimate;
  };
  std::optional<Kept> best;
  std::map<BatchSize, Kept> best_of_size;  // likewise, of those whose stages have one micro-batch
  ParetoSet<AnyPlan, Rank> pareto;         // of pipelines
  struct Missed {
    AnyPlan plan;
    std::vector<Excess> excess;
    std::pair<Bytes, std::uint64_t> rank;  // what it lacks in all, number
  };
  std::optional<Missed> closest;
  std::optional<std::pair<std::uint64_t, OperatorId>> broken_pin;  // of the first proposal that broke one
  std::uint64_t proposals = 0, evaluations = 0;

  Verdict rule(const RunPlan& plan) const;
  Verdict rule(const PipelinePlan& plan) const;
  Verdict rule(const Placement& plan) const;
  std::optional<Verdict> against_stage(const Stage& stage, std::span<const OperatorRun> operators) const;
  std::pair<Verdict, std::optional<RunPlan>> judge(const Proposal& proposal) const;
  void keep(AnyPlan plan, const Verdict& verdict, std::uint64_t number, std::optional<Duration> estimate);
  void keep_of_size(const AnyPlan& plan, const Rank& rank, std::optional<Duration> estimate);
  std::vector<PipelinePlan> of_other_sizes() const;
  std::vector<OtherChoice> choices() const;
};

// What speaks against a stage whatever it costs.
std::optional<Verdict> Judge::State::against_stage(const Stage& stage,
                                                   std::span<const OperatorRun> operators) const {
  if (const auto op = problem.oracle->rules().first_torn(operators)) return reason(Ruling::kTornApart, op);
  if (pins.empty()) return std::nullopt;
  if (const auto op = pins.first_broken(operators, devices_of(stage))) return reason(Ruling::kPinBroken, op);
  return std::nullopt;
}

Verdict Judge::State::rule(const RunPlan& plan) const {
  std::vector<StageRuns> runs;
  for (std::size_t s = 0; s < plan.runs.size(); ++s) {
    const Stage& stage = plan.frame.stages[s];
    if (const auto against = against_stage(stage, plan.runs[s].operators)) return *against;
    const bool chosen = stage.name.empty();  // by the planner: not locked
    if (chosen && stage.replicas.size() > 1 && problem.written_buffers == WrittenBuffers::kOneReplica) {
      const auto op = problem.oracle->rules().first_writer(plan.runs[s].operators);
      if (op) return reason(Ruling::kReplicatedWrites, op);
    }
    runs.push_back({plan.runs[s].operators, plan.runs[s].recompute});
  }
  const Oracle::Loan scratch(*problem.oracle);
  return verdict_of(problem.cluster, problem.oracle->evaluator().evaluate(plan.frame, runs, *scratch));
}

Verdict Judge::State::rule(const PipelinePlan& plan) const {
  for (const Stage& stage : plan.stages) {
    if (const auto against = against_stage(stage, runs_of(stage.operators))) return *against;
  }
  const Oracle::Loan scratch(*problem.oracle);
  return verdict_of(problem.cluster, problem.oracle->evaluator().evaluate(plan, *scratch));
}

// In the largest micro-batch that the training allows: the whole batch, where the model does.
Verdict Judge::State::rule(const Placement& placement) const {
  std::map<DeviceId, std::vector<OperatorId>> on;
  for (std::size_t i = 0; i < placement.device.size(); ++i) {
    on[placement.device[i]].push_back(OperatorId(i));
  }
  for (const auto& [device, operators] : on) {
    const auto op =
        pins.empty() ? std::nullopt : pins.first_broken(runs_of(operators), std::span(&device, 1));
    if (op) return reason(Ruling::kPinBroken, op);
  }
  return verdict_of(problem.cluster,
                    judge_placement(problem.graph, problem.cluster, problem.costs, problem.training,
                                    placement, {.micro_batch = problem.training.largest_micro_batch()}));
}

std::pair<Verdict, std::optional<RunPlan>> Judge::State::judge(const Proposal& proposal) const {
  const std::size_t named = proposal.schedule.group.size();
  if (named > 1 && named != proposal.stages.size()) return {reason(Ruling::kWrongOrders), std::nullopt};
  auto plan =
      problem.oracle->rules().complete(proposal.stages, problem.training.batch, proposal.micro_batch,
                                       proposal.lists ? Orders(*proposal.lists) : Orders(proposal.schedule));
  if (!plan) return {reason(Ruling::kCircle), std::nullopt};
  Verdict verdict = rule(*plan);
  return {std::move(verdict), std::move(plan)};
}

// The better of two by rank, whichever comes first: so the order in which threads come does not count.
void Judge::State::keep(AnyPlan plan, const Verdict& verdict, std::uint64_t number,
                        std::optional<Duration> estimate) {
  const PipelinePlan* const frame = frame_of(plan);
  const Rank rank{verdict.iteration, verdict.peak, frame ? frame->stages.size() : 0, number};
  const bool judged = verdict.ruling <= Ruling::kForbidden;
  {
    const std::lock_guard lock(mutex);
    if (judged) ++evaluations;
    if (verdict.ruling == Ruling::kPinBroken && (!broken_pin || number < broken_pin->first)) {
      broken_pin = {number, *verdict.op};
    }
    if (verdict.fits()) {
      keep_of_size(plan, rank, estimate);
      if (frame) {
        pareto.add({verdict.iteration, verdict.peak, depth_of(*frame)}, rank, [&] { return plan; });
      }
    }
    if (verdict.fits() && (!best || rank < best->rank)) {
      best = Kept{std::move(plan), rank, estimate};
    } else if (verdict.ruling == Ruling::kTooMuchMemory) {
      const std::pair miss(sum_of(verdict.excess), number);
      if (!closest || miss < closest->rank) closest = Missed{std::move(plan), verdict.excess, miss};
    }
  }
  if (!context.watch) return;
  if (judged) context.watch->count({.evaluations = 1});
  if (verdict.fits()) context.watch->found(verdict.iteration);
}

void Judge::State::keep_of_size(const AnyPlan& plan, const Rank& rank, std::optional<Duration> estimate) {
  const std::optional<BatchSize> size = one_size_of(plan);
  if (!size || frame_of(plan)->orders.lists()) return;
  const auto at = best_of_size.find(*size);
  if (at == best_of_size.end()) {
    best_of_size.emplace(*size, Kept{plan, rank, estimate});
  } else if (rank < at->second.rank) {
    at->second = Kept{plan, rank, estimate};
  }
}

std::vector<PipelinePlan> Judge::State::of_other_sizes() const {
  std::vector<PipelinePlan> plans;
  for (const auto& [size, kept] : best_of_size) {
    if (kept.rank != best->rank) plans.push_back(std::get<PipelinePlan>(spelled(problem.graph, kept.plan)));
  }
  return plans;
}

std::vector<OtherChoice> Judge::State::choices() const {
  std::vector<OtherChoice> result;
  const auto front = pareto.front();
  if (front.empty()) return result;
  PlanPrice least = front.front()->price;
  for (const auto* entry : front) {
    const PlanPrice& price = entry->price;
    if (result.size() == kMostChoices || price.iteration > 2 * front.front()->price.iteration) break;
    if (10 * price.peak > 9 * least.peak && price.depth >= least.depth) continue;
    least.peak = std::min(least.peak, price.peak);
    least.depth = std::min(least.depth, price.depth);
    result.push_back({std::get<PipelinePlan>(spelled(problem.graph, entry->item)), price});
  }
  return result;
}

Judge::Judge(const Problem& problem, Context& context) : state_(std::make_unique<State>(problem, context)) {}
Judge::~Judge() = default;

Verdict Judge::consider(const Proposal& proposal) {
  auto [verdict, plan] = state_->judge(proposal);
  const std::uint64_t number = state_->proposals++;
  state_->keep(plan ? AnyPlan(std::move(*plan)) : AnyPlan(PipelinePlan()), verdict, number,
               proposal.estimate);
  return verdict;
}

Verdict Judge::consider(const std::vector<StageDraft>& stages, BatchSize micro_batch,
                        const OrderRule& schedule, std::optional<Duration> estimate) {
  return consider(Proposal{stages, micro_batch, schedule, estimate});
}

Verdict Judge::consider(const Plan& plan, std::optional<Duration> estimate) {
  Verdict verdict = std::visit([&](const auto& whole) { return state_->rule(whole); }, plan);
  state_->keep(std::visit([](const auto& whole) { return AnyPlan(whole); }, plan), verdict,
               state_->proposals++, estimate);
  return verdict;
}

void Judge::consider_each(std::size_t count,
                          const std::function<std::optional<Proposal>(std::size_t, Context&)>& make) {
  const std::uint64_t first = state_->proposals;
  state_->proposals += count;
  state_->context.for_each(count, [&](std::size_t i, Context& own) {
    const std::optional<Proposal> proposal = make(i, own);
    if (!proposal) return;
    auto [verdict, plan] = state_->judge(*proposal);
    state_->keep(plan ? AnyPlan(std::move(*plan)) : AnyPlan(PipelinePlan()), verdict, first + i,
                 proposal->estimate);
  });
}

std::vector<std::optional<Verdict>> Judge::consider_all(std::span<const Proposal> proposals) {
  const std::uint64_t first = state_->proposals;
  state_->proposals += proposals.size();
  std::vector<std::optional<Verdict>> verdicts(proposals.size());
  state_->context.for_each(proposals.size(), [&](std::size_t i, Context&) {
    auto [verdict, plan] = state_->judge(proposals[i]);
    state_->keep(plan ? AnyPlan(std::move(*plan)) : AnyPlan(PipelinePlan()), verdict, first + i,
                 proposals[i].estimate);
    verdicts[i] = std::move(verdict);
  });
  return verdicts;
}

std::optional<Duration> Judge::best() const {
  const std::lock_guard lock(state_->mutex);
  return state_->best ? std::optional(std::get<Duration>(state_->best->rank)) : std::nullopt;
}

std::uint64_t Judge::evaluations() const {
  const std::lock_guard lock(state_->mutex);
  return state_->evaluations;
}

Outcome Judge::outcome() const {
  const Problem& problem = state_->problem;
  const Context& context = state_->context;
  Outcome outcome;
  outcome.stats = {.states = context.states, .evaluations = state_->evaluations};
  outcome.interrupted = context.stop();
  const std::string budget =
      "the budget of " + std::to_string(context.budget.max_states) + " states was spent";
  if (state_->best) {
    outcome.status = Status::kFeasible;
    outcome.plan = spelled(problem.graph, state_->best->plan);
    outcome.estimate = state_->best->estimate;
    outcome.of_other_sizes = state_->of_other_sizes();
    outcome.choices = state_->choices();
    if (outcome.interrupted) {
      outcome.why = "interrupted: the best plan found so far";
    } else if (context.budget_spent) {
      outcome.why = budget + ": a larger --budget may find a better plan";
    }
    return outcome;
  }
  if (state_->closest) {
    outcome.closest = NearMiss{spelled(problem.graph, state_->closest->plan), state_->closest->excess};
  }
  if (outcome.interrupted) {
    outcome.status = Status::kInterrupted;
    outcome.why = "interrupted before a plan was found";
  } else if (context.budget_spent) {
    outcome.status = Status::kBudgetSpent;
    outcome.why = budget + " before a plan was found; a larger --budget may find one";
  } else if (outcome.closest) {
    outcome.why = closest_text(problem.cluster, *outcome.closest);
  } else {
    outcome.why =
        state_->broken_pin
            ? "no plan in this planner's space keeps every pin; the first that it tried broke " +
                  describe_pin(problem.graph, problem.cluster, problem.pins, state_->broken_pin->second)
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
