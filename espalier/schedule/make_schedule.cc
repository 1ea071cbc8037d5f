// Compute orders: GPipe and 1F1B, on a DAG of stages.
//
// 1F1B on a DAG (GraphPipe, arXiv 2406.17145 §5, prose only; the order is our reading): a replica with limit
// w and share of n micro-batches runs w forwards, then backward and forward in turn, then the remaining
// backwards: "a forward while fewer than w are in flight, else a backward". On a chain of S stages with w =
// S, S-1, …, 1 this is PipeDream-flush. GPipe is the same with w = n.
//
//   w = 3, n = 4:  F0 F1 F2 B0 F3 B1 B2 B3
//
// Two cases need more than each replica's own pattern.
//  - A device with several stages needs one order for all. We simulate with every action one clock long and
//    messages free; of the actions that are ready, a device starts backwards first, then earlier samples,
//    then higher stages.
//  - Limits may be such that the patterns wait in a circle: a stage that wants w forwards before its first
//    backward, after one that stops at w - 1. If the simulation of the patterns stops, it is run again
//    eagerly: a backward if one is ready, else a forward while fewer than w are in flight.
// The simulation starts a forward only when the receive slots of its outputs are free, so every message
// leaves at once; the clock order is then consistent with compute, channel, data and slot edges, and the
// schedule cannot deadlock. O(clocks · (replicas + readers)); plans on disjoint devices whose limits shrink
// along every edge, as those of in_flight_limits do, need none of it.
//
// The eager run completes for micro-batches of one size: all before the lowest unfinished one are finished
// everywhere, so neither limits nor slots hold that one back. With unequal sizes and limits smaller than one
// large micro-batch it may stop; then the rest is appended as the pattern has it, and check_schedule prints
// the cycle.

#include <algorithm>
#include <limits>
#include <optional>

#include "espalier/base/check.h"
#include "espalier/schedule/schedule.h"
#include "espalier/schedule/shares.h"

namespace espalier {
namespace {

struct Started {
  const StagedReplica* replica = nullptr;
  Action action;  // F or B
};

// How far a replica is in its share.
struct Progress {
  StageId stage;
  const StagedReplica* replica = nullptr;
  std::size_t limit = 1;
  std::size_t forwards = 0;
  std::size_t backwards = 0;

  std::size_t share() const { return replica->micro_batches.size(); }
  bool finished() const { return backwards == share(); }
  bool may_forward() const { return forwards < share() && forwards - backwards < limit; }
  Action next(ActionKind kind) const {
    return {kind, stage, replica->micro_batches[kind == ActionKind::kForward ? forwards : backwards]};
  }
  Started take(ActionKind kind) {
    const Started started{replica, next(kind)};
    ++(kind == ActionKind::kForward ? forwards : backwards);
    return started;
  }
  ActionKind in_pattern() const { return may_forward() ? ActionKind::kForward : ActionKind::kBackward; }
};

std::vector<Progress> beginnings(const StagedModel& model) {
  std::vector<Progress> replicas;
  for (std::size_t s = 0; s < model.stages.size(); ++s) {
    for (const StagedReplica& replica : model.stages[s].replicas) {
      const std::size_t share = replica.micro_batches.size();
      const std::size_t limit = model.schedule == ScheduleKind::kGPipe
                                    ? share
                                    : std::min<std::size_t>(model.stages[s].in_flight, share);
      replicas.push_back({StageId(s), &replica, limit, 0, 0});
    }
  }
  return replicas;
}

void append_pattern(Progress replica, std::vector<Started>& started) {
  while (!replica.finished()) started.push_back(replica.take(replica.in_pattern()));
}

enum class Choice : std::uint8_t { kPattern, kEager };

class UnitTimeSimulation {
 public:
  UnitTimeSimulation(const StagedModel& model, std::size_t devices)
      : model_(model), replicas_(beginnings(model)), owners_(owners_of(model)), busy_until_(devices, 0) {
    for (const StagedStage& stage : model.stages) {
      forward_done_.emplace_back(stage.micro_batches, kNever);
      backward_done_.emplace_back(stage.micro_batches, kNever);
    }
    reads_.resize(model.stages.size());
    sends_.resize(model.stages.size());
    for (const Crossing& crossing : model.crossings) {
      sends_[crossing.from.index()].push_back(&crossing);
      for (const Crossing::Reader& reader : crossing.readers)
        reads_[reader.stage.index()].push_back(&crossing);
    }
  }

  struct Result {
    std::vector<Started> started;  // in the order of their starts
    bool completed = false;
  };
  Result run(Choice choice) {
    Result result;
    std::size_t before = 0;
    do {
      before = result.started.size();
      for (const ActionKind kind : {ActionKind::kBackward, ActionKind::kForward}) {
        for (Progress* replica : ready(kind, choice)) start(*replica, kind, result.started);
      }
      ++clock_;
    } while (result.started.size() > before);
    result.completed = std::all_of(replicas_.begin(), replicas_.end(),
                                   [](const Progress& replica) { return replica.finished(); });
    for (const Progress& replica : replicas_) append_pattern(replica, result.started);
    return result;
  }

 private:
  static constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

  // Replicas whose next action of this kind could start now, the most urgent first.
  std::vector<Progress*> ready(ActionKind kind, Choice choice) {
    const bool forward = kind == ActionKind::kForward;
    std::vector<Progress*> result;
    for (Progress& replica : replicas_) {
      if (replica.finished()) continue;
      const bool allowed = choice == Choice::kPattern ? replica.in_pattern() == kind
                           : forward                  ? replica.may_forward()
                                                      : replica.backwards < replica.forwards;
      if (!allowed) continue;
      const Action action = replica.next(kind);
      if (forward ? forward_ready(*replica.replica, action) : backward_ready(action))
        result.push_back(&replica);
    }
    std::stable_sort(result.begin(), result.end(), [&](const Progress* a, const Progress* b) {
      const std::uint64_t x = std::uint64_t{a->next(kind).micro_batch} * count(b->stage);
      const std::uint64_t y = std::uint64_t{b->next(kind).micro_batch} * count(a->stage);
      return x != y ? x < y : a->stage > b->stage;
    });
    return result;
  }

  void start(Progress& replica, ActionKind kind, std::vector<Started>& started) {
    const std::vector<DeviceId>& devices = replica.replica->devices;
    if (std::any_of(devices.begin(), devices.end(),
                    [&](DeviceId device) { return busy_until_[device.index()] > clock_; })) {
      return;
    }
    for (const DeviceId device : devices) busy_until_[device.index()] = clock_ + 1;
    const Action action = replica.next(kind);
    (kind == ActionKind::kForward ? forward_done_
                                  : backward_done_)[action.stage.index()][action.micro_batch] = clock_ + 1;
    started.push_back(replica.take(kind));
  }

  bool done(const std::vector<std::vector<std::size_t>>& when, StageId stage, std::uint32_t j) const {
    return when[stage.index()][j] <= clock_;
  }
  std::uint32_t count(StageId stage) const { return model_.stages[stage.index()].micro_batches; }
  const StagedReplica& replica_of(StageId stage, std::uint32_t j) const {
    return model_.stages[stage.index()].replicas[owners_[stage.index()][j].replica];
  }

  bool forward_ready(const StagedReplica& replica, const Action& action) const {
    for (const Crossing* crossing : reads_[action.stage.index()]) {
      const auto range = overlapping(action.micro_batch, count(action.stage), count(crossing->from));
      for (std::uint32_t j = range.begin; j < range.end; ++j) {
        if (!done(forward_done_, crossing->from, j)) return false;
      }
    }
    for (const Crossing* crossing : sends_[action.stage.index()]) {
      for (const Crossing::Reader& reader : crossing->readers) {
        const auto range = overlapping(action.micro_batch, count(action.stage), count(reader.stage));
        for (std::uint32_t k = range.begin; k < range.end; ++k) {
          if (!slot_free(replica, *crossing, reader, k)) return false;
        }
      }
    }
    return true;
  }

  bool backward_ready(const Action& action) const {
    if (!done(forward_done_, action.stage, action.micro_batch)) return false;
    for (const Crossing* crossing : sends_[action.stage.index()]) {
      for (const Crossing::Reader& reader : crossing->readers) {
        if (!flows_back(*crossing, reader)) continue;
        const auto range = overlapping(action.micro_batch, count(action.stage), count(reader.stage));
        for (std::uint32_t k = range.begin; k < range.end; ++k) {
          if (!done(backward_done_, reader.stage, k)) return false;
        }
      }
    }
    return true;
  }

  // May a message to the reader's micro-batch k be posted: has the micro-batch in-flight + 1 before it been
  // released by all stages on the receiving device?
  bool slot_free(const StagedReplica& sender, const Crossing& crossing, const Crossing::Reader& reader,
                 std::uint32_t k) const {
    const StagedReplica& receiver = replica_of(reader.stage, k);
    if (receiver.devices == sender.devices) return true;
    const std::uint32_t slots = model_.stages[reader.stage.index()].in_flight + 1;
    const std::uint32_t rank = owners_[reader.stage.index()][k].rank;
    if (rank < slots) return true;
    const std::uint32_t earlier = receiver.micro_batches[rank - slots];
    for (const Crossing::Reader& other : crossing.readers) {
      const auto range = overlapping(earlier, count(reader.stage), count(other.stage));
      for (std::uint32_t l = range.begin; l < range.end; ++l) {
        if (!share_a_device(replica_of(other.stage, l).devices, receiver.devices)) continue;
        if (!done(other.saved ? backward_done_ : forward_done_, other.stage, l)) return false;
      }
    }
    return true;
  }

  const StagedModel& model_;
  std::vector<Progress> replicas_;  // ascending (stage, replica)
  Owners owners_;
  std::vector<std::size_t> busy_until_;                 // by device
  std::vector<std::vector<std::size_t>> forward_done_;  // by stage and micro-batch: the clock
  std::vector<std::vector<std::size_t>> backward_done_;
  std::vector<std::vector<const Crossing*>> reads_;  // by stage
  std::vector<std::vector<const Crossing*>> sends_;
  std::size_t clock_ = 0;
};

bool several_stages_on_a_device(const StagedModel& model, std::size_t devices) {
  std::vector<bool> taken(devices, false);
  for (const StagedStage& stage : model.stages) {
    for (const StagedReplica& replica : stage.replicas) {
      for (const DeviceId device : replica.devices) {
        if (taken.at(device.index())) return true;
        taken[device.index()] = true;
      }
    }
  }
  return false;
}

// May the patterns be used as they are? With equal sizes, shares j mod r and w_x · r_x ≥ w_y · r_y on every
// edge x → y: B_j at y stands after F_m, m = j + (w_y - 1) · r_y; F_m at x stands after the backward of
// m - w_x · r_x, which is less than j. So waiting always leads to a smaller micro-batch.
bool limits_shrink(const StagedModel& model) {
  for (const Crossing& crossing : model.crossings) {
    const StagedStage& x = model.stages[crossing.from.index()];
    for (const Crossing::Reader& reader : crossing.readers) {
      const StagedStage& y = model.stages[reader.stage.index()];
      if (x.micro_batches != y.micro_batches) return false;
      const std::size_t supplied = std::size_t{x.in_flight} * x.replicas.size();
      if (supplied >= x.micro_batches) continue;  // all forwards first
      if (supplied < std::size_t{y.in_flight} * y.replicas.size()) return false;
    }
  }
  for (const StagedStage& stage : model.stages) {
    for (std::size_t r = 0; r < stage.replicas.size(); ++r) {
      if (stage.replicas[r].micro_batches != round_robin(stage.micro_batches, r, stage.replicas.size()))
        return false;
    }
  }
  return true;
}

void append(const StagedModel& model, const StagedReplica& replica, const Action& action,
            std::vector<std::vector<Action>>& lists) {
  for (const DeviceId device : replica.devices) {
    std::vector<Action>& list = lists.at(device.index());
    if (action.kind == ActionKind::kBackward && recomputes(model.stages[action.stage.index()])) {
      list.push_back({ActionKind::kRecompute, action.stage, action.micro_batch});
    }
    list.push_back(action);
  }
}

// A of all stages, T of all ties, U of all stages: in one order everywhere, so that collectives cannot cross.
void append_ends_of_step(const StagedModel& model, std::vector<std::vector<Action>>& lists) {
  const auto on_all_replicas = [&](StageId stage, const Action& action) {
    for (const StagedReplica& replica : model.stages[stage.index()].replicas) {
      for (const DeviceId device : replica.devices) {
        std::vector<Action>& list = lists.at(device.index());
        if (list.empty() || list.back() != action) list.push_back(action);
      }
    }
  };
  for (std::size_t s = 0; s < model.stages.size(); ++s) {
    if (reduces(model.stages[s])) on_all_replicas(StageId(s), {ActionKind::kAllReduce, StageId(s), 0});
  }
  for (std::size_t t = 0; t < model.ties.size(); ++t) {
    for (const StageId stage : model.ties[t].stages)
      on_all_replicas(stage, {ActionKind::kTieSum, StageId(t), 0});
  }
  for (std::size_t s = 0; s < model.stages.size(); ++s) {
    if (updates(model.stages[s])) on_all_replicas(StageId(s), {ActionKind::kUpdate, StageId(s), 0});
  }
}

}  // namespace

Schedule make_schedule(const StagedModel& model, std::size_t devices) {
  std::vector<Started> started;
  if (several_stages_on_a_device(model, devices) || !limits_shrink(model)) {
    UnitTimeSimulation::Result result = UnitTimeSimulation(model, devices).run(Choice::kPattern);
    if (!result.completed) {
      result = UnitTimeSimulation(model, devices).run(Choice::kEager);
    }
    started = std::move(result.started);
  } else {
    for (const Progress& replica : beginnings(model)) append_pattern(replica, started);
  }
  std::vector<std::vector<Action>> lists(devices);
  for (const auto& [replica, action] : started) append(model, *replica, action, lists);
  append_ends_of_step(model, lists);
  return with_channels(model, std::move(lists));
}

}  // namespace espalier
