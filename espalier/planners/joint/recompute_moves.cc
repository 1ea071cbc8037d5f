// Moves that change what a stage computes again instead of keeping it.

#include <algorithm>
#include <optional>

#include "espalier/planners/joint/moves.h"

namespace espalier::joint {
namespace {

bool may_change(const StageDraft& stage, const std::vector<Excess>& excess) {
  return stage.locked_as.empty() && std::any_of(excess.begin(), excess.end(), [&](const Excess& each) {
           return std::find(stage.devices.begin(), stage.devices.end(), each.device) != stage.devices.end();
         });
}

Proposal recomputing(const Site& site, std::size_t stage, OperatorSet again) {
  Proposal plan = site.plan;
  plan.stages[stage].recompute = std::move(again);
  return plan;
}

}  // namespace

std::vector<Proposal> recompute_moves(const Site& site) {
  std::vector<Proposal> moves;
  Proposal none = site.plan;
  std::size_t changed = 0;
  for (std::size_t i = 0; i < site.stages.size(); ++i) {
    const std::size_t s = site.stages[i];
    const StageDraft& stage = site.plan.stages[s];
    if (stage.recompute.empty()) continue;
    none.stages[s].recompute = OperatorSet();
    if (++changed > kSources) continue;
    moves.push_back(recomputing(site, s, OperatorSet()));
    for (const Part& part : site.parts(s)) {
      OperatorSet rest = without(stage.recompute, part.operators);
      if (part.side != Part::Side::kPiece) moves.push_back(recomputing(site, s, std::move(rest)));
    }
  }
  if (changed > 1) moves.push_back(std::move(none));
  return moves;
}

namespace {

// All of the stages that stand on devices which lack memory is recomputed; nothing if it was before.
std::optional<Proposal> all_recomputed(const Space& space, Proposal plan, const std::vector<Excess>& excess) {
  bool changed = false;
  for (StageDraft& stage : plan.stages) {
    if (!may_change(stage, excess) || stage.recompute == space.repeatable()) continue;
    stage.recompute = space.repeatable();
    changed = true;
  }
  return changed ? std::optional(std::move(plan)) : std::nullopt;
}

Proposal with_one_in_flight(const Space& space, Proposal plan, const std::vector<Excess>& excess) {
  const std::int32_t fewest = fewest_in_flight(space, plan);
  for (StageDraft& stage : plan.stages) {
    if (may_change(stage, excess)) stage.more_in_flight = fewest;
  }
  return plan;
}

// The beginning of a stage with about half of its work.
std::optional<OperatorSet> first_half(const Space& space, const StageDraft& stage, BatchSize micro_batch) {
  const KindId kind = space.problem().cluster.device(stage.devices.front()).kind;
  const Duration all = space.work(stage.operators, kind, micro_batch);
  std::optional<OperatorSet> best;
  Duration least;
  for (Part& part : parts_of(space, stage.operators, kind, micro_batch)) {
    if (part.side != Part::Side::kBeginning) continue;
    const Duration twice = 2 * space.work(part.operators, kind, micro_batch);
    const Duration off = std::max(twice, all) - std::min(twice, all);
    if (best && off >= least) continue;
    best = std::move(part.operators);
    least = off;
  }
  return best;
}

// Stages on devices that lack memory become two each, on the same devices, with as many in flight.
Proposal halved(const Space& space, Proposal plan, const std::vector<Excess>& excess) {
  const std::size_t count = plan.stages.size();
  for (std::size_t s = 0; s < count; ++s) {
    if (!may_change(plan.stages[s], excess)) continue;
    std::optional<OperatorSet> half = first_half(space, plan.stages[s], plan.micro_batch);
    if (!half) continue;
    StageDraft end = plan.stages[s];
    end.operators = without(end.operators, *half);
    end.after.clear();
    plan.stages[s].operators = std::move(*half);
    plan.stages[s].more_in_flight = std::max(plan.stages[s].more_in_flight - 1, -kMostMore);
    plan.stages.push_back(std::move(end));
  }
  return plan;
}

}  // namespace

std::vector<Proposal> with_recomputation(const Space& space, const Proposal& plan,
                                         const std::vector<Excess>& excess, std::size_t halvings) {
  std::vector<Proposal> plans;
  Proposal cut = plan;
  for (std::size_t h = 0; h <= halvings; ++h) {
    if (std::optional<Proposal> again = all_recomputed(space, cut, excess)) {
      plans.push_back(*again);
      plans.push_back(with_one_in_flight(space, std::move(*again), excess));
    }
    if (h < halvings) cut = halved(space, std::move(cut), excess);
  }
  return plans;
}

}  // namespace espalier::joint
