// Compute orders: GPipe and 1F1B, on a DAG of stages.
//
// 1F1B on a DAG (GraphPipe, arXiv 2406.17145 §5; for the order notes of the paper's prose): a replica with
// limit w and share of n micro-batches runs w forwards, then backward and forward in turn, then the remaining
// backwards. On a chain of S stages with w = S, S-1, …, 1 this is PipeDream-flush.
//
//   w = 3, n = 4:  F0 F1 F2 B0 F3 B1 B2 B3
//
// A device with several stages (interleaving, or branches that share a device) needs one order for all of
// them. We simulate with every action one clock long and messages free, each device picking a ready backward
// before a forward and a higher stage before a lower. The simulation starts a forward only when all receive
// slots for its outputs are free, so every message leaves at once; the clock order is then consistent with
// compute, channel, data and slot edges, and the schedule cannot deadlock. O(clocks · stages · replicas ·
// readers), used only where a device has several stages.
//
// It always completes if micro-batches have one size: of the lowest micro-batch that is not done everywhere,
// all earlier ones are done, so neither limits nor slots stop it. With unequal sizes and limits smaller than
// one large micro-batch it stops; then the lists are appended as they are, and check_schedule prints the
// cycle.

#include <algorithm>
#include <limits>
#include <optional>

#include "espalier/base/check.h"
#include "espalier/schedule/schedule.h"
#include "espalier/schedule/shares.h"

namespace espalier {
namespace {

// One replica's forwards and backwards; a backward brings its recomputation with it.
std::vector<Action> replica_order(const StagedModel& model, StageId stage, const StagedReplica& replica) {
  const std::vector<std::uint32_t>& share = replica.micro_batches;
  const std::size_t limit = model.schedule == ScheduleKind::kGPipe
                                ? share.size()
                                : std::min<std::size_t>(model.stages[stage.index()].in_flight, share.size());
  std::vector<Action> order;
  order.reserve(2 * share.size());
  std::size_t forwards = 0;
  for (; forwards < limit; ++forwards) order.push_back({ActionKind::kForward, stage, share[forwards]});
  for (const std::uint32_t micro_batch : share) {
    order.push_back({ActionKind::kBackward, stage, micro_batch});
    if (forwards < share.size()) order.push_back({ActionKind::kForward, stage, share[forwards++]});
  }
  return order;
}

struct ReplicaOrder {
  StageId stage;
  const StagedReplica* replica = nullptr;
  std::vector<Action> actions;
  std::size_t next = 0;
};

class UnitTimeMerge {
 public:
  UnitTimeMerge(const StagedModel& model, std::vector<ReplicaOrder>& orders, std::size_t devices)
      : model_(model), orders_(orders), owners_(owners_of(model)), busy_until_(devices, 0) {
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

  // The actions of all replicas in the order in which they start.
  std::vector<std::pair<const ReplicaOrder*, Action>> run() {
    std::vector<std::pair<const ReplicaOrder*, Action>> started;
    for (clock_ = 0;; ++clock_) {
      const std::size_t before = started.size();
      for (const ActionKind kind : {ActionKind::kBackward, ActionKind::kForward}) {
        for (auto order = orders_.rbegin(); order != orders_.rend(); ++order) start(*order, kind, started);
      }
      if (started.size() == before) break;
    }
    for (ReplicaOrder& order : orders_) {  // stopped: nothing is left, or this plan deadlocks
      while (order.next < order.actions.size()) started.emplace_back(&order, order.actions[order.next++]);
    }
    return started;
  }

 private:
  static constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

  void start(ReplicaOrder& order, ActionKind kind,
             std::vector<std::pair<const ReplicaOrder*, Action>>& started) {
    if (order.next == order.actions.size()) return;
    const Action action = order.actions[order.next];
    if (action.kind != kind) return;
    const std::vector<DeviceId>& devices = order.replica->devices;
    if (std::any_of(devices.begin(), devices.end(),
                    [&](DeviceId device) { return busy_until_[device.index()] > clock_; })) {
      return;
    }
    const bool forward = kind == ActionKind::kForward;
    if (!(forward ? forward_ready(order, action) : backward_ready(action))) return;
    ++order.next;
    for (const DeviceId device : devices) busy_until_[device.index()] = clock_ + 1;
    (forward ? forward_done_ : backward_done_)[action.stage.index()][action.micro_batch] = clock_ + 1;
    started.emplace_back(&order, action);
  }

  bool done(const std::vector<std::vector<std::size_t>>& when, StageId stage, std::uint32_t j) const {
    return when[stage.index()][j] <= clock_;
  }
  std::uint32_t count(StageId stage) const { return model_.stages[stage.index()].micro_batches; }
  const StagedReplica& replica_of(StageId stage, std::uint32_t j) const {
    return model_.stages[stage.index()].replicas[owners_[stage.index()][j].replica];
  }

  bool forward_ready(const ReplicaOrder& order, const Action& action) const {
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
          if (!slot_free(*order.replica, *crossing, reader, k)) return false;
        }
      }
    }
    return true;
  }

  bool backward_ready(const Action& action) const {
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
  std::vector<ReplicaOrder>& orders_;  // ascending (stage, replica)
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
  std::vector<ReplicaOrder> orders;
  for (std::size_t s = 0; s < model.stages.size(); ++s) {
    for (const StagedReplica& replica : model.stages[s].replicas) {
      orders.push_back({StageId(s), &replica, replica_order(model, StageId(s), replica), 0});
    }
  }
  std::vector<std::vector<Action>> lists(devices);
  if (several_stages_on_a_device(model, devices)) {
    for (const auto& [order, action] : UnitTimeMerge(model, orders, devices).run()) {
      append(model, *order->replica, action, lists);
    }
  } else {
    for (const ReplicaOrder& order : orders) {
      for (const Action& action : order.actions) append(model, *order.replica, action, lists);
    }
  }
  append_ends_of_step(model, lists);
  return with_channels(model, std::move(lists));
}

}  // namespace espalier
