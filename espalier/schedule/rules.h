#pragma once

// What the rules of orders say, for one replica: which of its actions may be next. make_schedule and the
// unit-time simulation ask it; nothing else in the product knows a pattern.
//
// 1F1B on a DAG (GraphPipe, arXiv 2406.17145 §5, prose only; the order is our reading): a replica with limit
// w and share of n micro-batches runs w forwards, then backward and forward in turn, then the remaining
// backwards: "a forward while fewer than w are in flight, else a backward". On a chain of S stages with w =
// S, S-1, …, 1 this is PipeDream-flush. GPipe is the same with w = n. With k (at most w) the backwards and
// forwards in turn are k each (kFkB, Ada-Grouper, arXiv 2303.01675): after d micro-batches are done, forwards
// may go up to w + k·⌊d / k⌋.
//
//   w = 3, n = 4:         F0 F1 F2 B0 F3 B1 B2 B3
//   w = 4, n = 8, k = 2:  F0 F1 F2 F3 B0 B1 F4 F5 B2 B3 F6 F7 B4 B5 B6 B7

#include <algorithm>

#include "espalier/schedule/schedule.h"

namespace espalier {

// How far a replica is in its share.
struct Progress {
  enum class Next : std::uint8_t { kBackward, kForward, kWeights };  // B or I; F; W

  StageId stage;
  const StagedReplica* replica = nullptr;
  std::size_t limit = 1;
  std::size_t group = 1;  // k
  bool split = false;     // I and W in place of B
  std::size_t forwards = 0;
  std::size_t backwards = 0;  // B or I
  std::size_t weights = 0;    // W

  std::size_t share() const { return replica->micro_batches.size(); }
  std::size_t done() const { return split ? weights : backwards; }
  bool finished() const { return done() == share(); }

  // May it be next, as far as limit and k go?
  bool may(Next next) const {
    switch (next) {
      case Next::kForward:
        return forwards < share() && forwards < limit + (group == 1 ? done() : group * (done() / group));
      case Next::kBackward:
        return backwards < forwards;
      case Next::kWeights:
        return split && weights < backwards;
    }
    return false;
  }
  // The rule's own choice of those: forwards first.
  Next in_pattern() const {
    if (may(Next::kForward)) return Next::kForward;
    return may(Next::kBackward) || !split ? Next::kBackward : Next::kWeights;
  }

  Action action(Next next) const {
    switch (next) {
      case Next::kForward:
        return {ActionKind::kForward, stage, replica->micro_batches[forwards]};
      case Next::kWeights:
        return {ActionKind::kWeightGradient, stage, replica->micro_batches[weights]};
      case Next::kBackward:
        break;
    }
    return {split ? ActionKind::kInputGradient : ActionKind::kBackward, stage,
            replica->micro_batches[backwards]};
  }
  void advance(Next next) {
    ++(next == Next::kForward ? forwards : next == Next::kBackward ? backwards : weights);
  }
};

// All replicas at the beginning of a step, ascending (stage, replica). The model's orders must be a rule.
inline std::vector<Progress> beginnings(const StagedModel& model) {
  const OrderRule& rule = *model.orders.rule();
  std::vector<Progress> replicas;
  for (std::size_t s = 0; s < model.stages.size(); ++s) {
    const StagedStage& stage = model.stages[s];
    for (const StagedReplica& replica : stage.replicas) {
      Progress progress;
      progress.stage = StageId(s);
      progress.replica = &replica;
      const std::size_t share = replica.micro_batches.size();
      const bool gpipe = rule.kind == ScheduleKind::kGPipe;
      progress.limit = gpipe ? share : std::min<std::size_t>(stage.in_flight, share);
      progress.group =
          std::clamp<std::size_t>(rule.group_of(progress.stage), 1, std::max<std::size_t>(progress.limit, 1));
      progress.split = rule.backward == OrderRule::Backward::kSplit && can_split(stage);
      replicas.push_back(progress);
    }
  }
  return replicas;
}

struct StartedAction {
  const StagedReplica* replica = nullptr;
  Action action;  // F, B, I or W
};

// The lists of make_schedule, by device.
std::vector<std::vector<Action>> make_lists(const StagedModel& model, std::size_t devices);

// May each replica's pattern be the list of its device as it is? make_schedule.cc says why.
bool patterns_suffice(const StagedModel& model, std::size_t devices);

// Calls visit(action, stage) for what stands once at the end of a step, on all devices of the stage: A of all
// stages, T of all ties, U of all stages; in one order everywhere, so that collectives cannot cross.
template <class Visit>
void for_ends_of_step(const StagedModel& model, Visit visit) {
  for (std::size_t s = 0; s < model.stages.size(); ++s) {
    if (reduces(model.stages[s])) visit(Action(ActionKind::kAllReduce, StageId(s), 0), StageId(s));
  }
  for (std::size_t t = 0; t < model.ties.size(); ++t) {
    for (const StageId stage : model.ties[t].stages) visit(Action(TieId(t)), stage);
  }
  for (std::size_t s = 0; s < model.stages.size(); ++s) {
    if (updates(model.stages[s])) visit(Action(ActionKind::kUpdate, StageId(s), 0), StageId(s));
  }
}

// All that is left of a replica's share, in its pattern.
inline void append_pattern(Progress replica, std::vector<StartedAction>& started) {
  while (!replica.finished()) {
    const Progress::Next next = replica.in_pattern();
    started.push_back({replica.replica, replica.action(next)});
    replica.advance(next);
  }
}

}  // namespace espalier
