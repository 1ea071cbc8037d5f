// From orders to a schedule.
//
// A rule gives each replica a pattern (rules.h). That is the order of its device, but in two cases:
//  - A device with several stages needs one order for all.
//  - Limits may be such that the patterns wait in a circle: a stage that wants w forwards before its first
//    backward, after one that stops at w - 1.
// Then the unit-time simulation finds an order (unit_time.h); if the patterns stop there too, it is run again
// eagerly. Plans on disjoint devices whose limits shrink along every edge, as those of in_flight_limits do,
// need none of it. Where it stops, the rest is appended as the pattern has it, and check_schedule prints the
// cycle. Split orders always come from it: when W runs depends on when the others wait.

#include <algorithm>
#include <set>

#include "espalier/base/hash.h"
#include "espalier/schedule/schedule.h"
#include "espalier/schedule/shares.h"
#include "espalier/schedule/unit_time.h"

namespace espalier {
namespace {

using ActionLists = std::vector<std::vector<Action>>;  // by device

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

// May the patterns be used as they are? With equal sizes, shares j mod r and (w_x - k_x + 1) · r_x ≥ w_y ·
// r_y on every edge x → y: B_j at y stands after F_m, m ≤ j + (w_y - 1) · r_y; F_m at x stands after the
// backward of at most m - (w_x - k_x + 1) · r_x, which is less than j. So waiting always leads to a smaller
// micro-batch. With a slot for each micro-batch in flight, F_i at y stands after what frees the slot of i.
bool limits_shrink(const StagedModel& model) {
  for (const Crossing& crossing : model.crossings) {
    const StagedStage& x = model.stages[crossing.from.index()];
    const std::size_t group = std::min(model.orders.rule()->group_of(crossing.from), x.in_flight);
    for (const Crossing::Reader& reader : crossing.readers) {
      const StagedStage& y = model.stages[reader.stage.index()];
      if (x.micro_batches != y.micro_batches || y.receive_slots() < y.in_flight) return false;
      if (std::size_t{x.in_flight} * x.replicas.size() >= x.micro_batches) continue;  // all forwards first
      const std::size_t supplied = (x.in_flight - group + 1) * x.replicas.size();
      if (supplied < std::size_t{y.in_flight} * y.replicas.size()) return false;
    }
  }
  for (const StagedStage& stage : model.stages) {
    for (std::size_t r = 0; r < stage.replicas.size(); ++r) {
      if (!is_round_robin(stage.replicas[r].micro_batches, stage.micro_batches, r, stage.replicas.size()))
        return false;
    }
  }
  return true;
}

std::vector<StartedAction> started_by_rule(const StagedModel& model, std::size_t devices) {
  if (model.orders.rule()->backward == OrderRule::Backward::kSplit) {
    if (model.orders.has_kind(ScheduleKind::kGPipe)) {
      UnitTimeOrder order = unit_time_order(model, devices, Choice::kForwardsFirst);
      if (order.completed) return std::move(order.started);
    }
    return unit_time_order(model, devices, Choice::kEager).started;
  }
  if (!patterns_suffice(model, devices)) {
    UnitTimeOrder order = unit_time_order(model, devices, Choice::kPattern);
    if (!order.completed) order = unit_time_order(model, devices, Choice::kEager);
    return std::move(order.started);
  }
  std::vector<StartedAction> started;
  for (const Progress& replica : beginnings(model)) append_pattern(replica, started);
  return started;
}

ActionLists lists_by_rule(const StagedModel& model, std::size_t devices) {
  ActionLists lists(devices);
  std::vector<char> again;                    // by stage: it computes again
  std::vector<std::size_t> most(devices, 0);  // actions, but for ties' sums
  for (const StagedStage& stage : model.stages) {
    again.push_back(recomputes(stage) ? 1 : 0);
    for (const StagedReplica& replica : stage.replicas) {
      const std::size_t actions = (3U + again.back()) * replica.micro_batches.size() + 2;
      for (const DeviceId device : replica.devices) most.at(device.index()) += actions;
    }
  }
  for (std::size_t d = 0; d < devices; ++d) lists[d].reserve(most[d]);
  for (const auto& [replica, action] : started_by_rule(model, devices)) {
    const bool after_recompute =
        (action.kind == ActionKind::kBackward || action.kind == ActionKind::kInputGradient) &&
        again[action.stage().index()] != 0;
    for (const DeviceId device : replica->devices) {
      std::vector<Action>& list = lists.at(device.index());
      if (after_recompute) list.push_back({ActionKind::kRecompute, action.stage(), action.micro_batch});
      list.push_back(action);
    }
  }
  return lists;
}

bool has_sum(const std::vector<Action>& list) {
  return std::any_of(list.begin(), list.end(), [](const Action& action) { return is_sum(action.kind); });
}

// A of each stage right behind its last backward, so that it goes on beside what follows. Later stages, whose
// backwards end first, come first, on all devices: in one order sums cannot cross. Where the lists have sums
// of their own, nothing is known of that order, and the others come last.
void insert_all_reduces(const StagedModel& model, ActionLists& lists) {
  if (std::any_of(lists.begin(), lists.end(), has_sum)) return;
  std::vector<std::size_t> from(lists.size(), 0);  // behind the device's sum before it
  for (std::size_t s = model.stages.size(); s-- > 0;) {
    if (!reduces(model.stages[s])) continue;
    std::set<DeviceId> devices;
    for (const StagedReplica& replica : model.stages[s].replicas) {
      devices.insert(replica.devices.begin(), replica.devices.end());
    }
    for (const DeviceId device : devices) {
      std::vector<Action>& list = lists.at(device.index());
      std::size_t place = list.size();
      while (place > from[device.index()] &&
             !(list[place - 1].kind < ActionKind::kAllReduce && list[place - 1].stage() == StageId(s)))
        --place;
      list.insert(list.begin() + static_cast<std::ptrdiff_t>(place), {ActionKind::kAllReduce, StageId(s), 0});
      from[device.index()] = place + 1;
    }
  }
}

// What stands nowhere yet.
void append_ends_of_step(const StagedModel& model, ActionLists& lists) {
  std::set<Action> present;
  for (const std::vector<Action>& list : lists) {
    for (const Action& action : list) {
      if (once_per_step(action.kind)) present.insert(action);
    }
  }
  for_ends_of_step(model, [&](const Action& action, StageId stage) {
    if (present.contains(action)) return;
    for (const StagedReplica& replica : model.stages[stage.index()].replicas) {
      for (const DeviceId device : replica.devices) {
        std::vector<Action>& list = lists.at(device.index());
        if (list.empty() || list.back() != action) list.push_back(action);
      }
    }
  });
}

// A list of steps with micro-batches, for one device.
class Numbering {
 public:
  Numbering(const StagedModel& model, DeviceId device, const std::vector<Step>& list)
      : model_(model), stages_(model.stages.size()) {
    for (std::size_t s = 0; s < model.stages.size(); ++s) {
      stages_[s].adds_recompute = recomputes(model.stages[s]);
      for (const StagedReplica& replica : model.stages[s].replicas) {
        const auto& devices = replica.devices;
        if (std::find(devices.begin(), devices.end(), device) != devices.end()) {
          stages_[s].share = &replica.micro_batches;
        }
      }
    }
    for (const Step& step : list) {
      if (once_per_step(step.kind)) continue;
      OfStage& of = stages_[step.stage().index()];
      if (step.kind == ActionKind::kRecompute) of.adds_recompute = false;
      if (!starts_backward(step.kind)) continue;
      const std::uint32_t n = of.backwards_in_all++;
      if (step.kind == ActionKind::kInputGradient) of.split.push_back(n);
    }
  }

  void add(const Step& step, std::vector<Action>& actions) {
    if (once_per_step(step.kind)) return actions.push_back({step, 0});
    OfStage& of = stages_[step.stage().index()];
    const std::uint32_t j = number(of, step.stage(), place(of, step.kind));
    if (starts_backward(step.kind) && of.adds_recompute) {
      actions.push_back({ActionKind::kRecompute, step.stage(), j});
    }
    actions.push_back({step, j});
  }

 private:
  struct OfStage {
    const std::vector<std::uint32_t>* share = nullptr;  // null: it is not on this device
    std::uint32_t forwards = 0, backwards = 0, recomputes = 0, weights = 0, backwards_in_all = 0;
    std::vector<std::uint32_t> split;  // places in the share that have an I
    bool adds_recompute = false;
  };
  static bool starts_backward(ActionKind kind) {
    return kind == ActionKind::kBackward || kind == ActionKind::kInputGradient;
  }

  // Which of the share's micro-batches the next action of this kind is for.
  static std::uint32_t place(OfStage& of, ActionKind kind) {
    if (kind == ActionKind::kForward) return of.forwards++;
    if (kind == ActionKind::kRecompute) return of.recomputes++;
    if (starts_backward(kind)) return of.backwards++;
    const std::uint32_t n = of.weights++;
    return n < of.split.size() ? of.split[n] : of.backwards_in_all + n;
  }
  // One too many gets a number that does not exist.
  std::uint32_t number(const OfStage& of, StageId stage, std::uint32_t n) const {
    const std::size_t share = of.share == nullptr ? 0 : of.share->size();
    return n < share ? (*of.share)[n] : model_.stages[stage.index()].micro_batches + n - narrow(share);
  }

  const StagedModel& model_;
  std::vector<OfStage> stages_;
};

ActionLists numbered(const StagedModel& model, std::size_t devices, const OrderLists& lists) {
  ActionLists result(devices);
  for (std::size_t d = 0; d < std::min(devices, lists.size()); ++d) {
    Numbering numbering(model, DeviceId(d), lists[d]);
    for (const Step& step : lists[d]) numbering.add(step, result[d]);
  }
  insert_all_reduces(model, result);
  append_ends_of_step(model, result);
  return result;
}

}  // namespace

bool patterns_suffice(const StagedModel& model, std::size_t devices) {
  return model.orders.rule()->backward != OrderRule::Backward::kSplit &&
         !several_stages_on_a_device(model, devices) && limits_shrink(model);
}

ActionLists make_lists(const StagedModel& model, std::size_t devices) {
  if (const OrderLists* lists = model.orders.lists()) return numbered(model, devices, *lists);
  ActionLists lists = lists_by_rule(model, devices);
  if (model.orders.rule()->edition != OrderRule::Edition::kFirst) insert_all_reduces(model, lists);
  append_ends_of_step(model, lists);
  return lists;
}

Schedule make_schedule(const StagedModel& model, std::size_t devices) {
  return with_channels(model, make_lists(model, devices));
}

OrderLists lists_of(const StagedModel& model, const Schedule& schedule) {
  OrderLists lists;
  for (const std::vector<Action>& actions : schedule.devices)
    lists.emplace_back(actions.begin(), actions.end());
  const auto leave_out = [&](const auto& strip) {
    OrderLists shorter = lists;
    for (std::vector<Step>& list : shorter) strip(list);
    if (numbered(model, schedule.devices.size(), shorter) == schedule.devices) lists = std::move(shorter);
  };
  leave_out([](std::vector<Step>& list) {
    std::erase_if(list, [](const Step& step) { return once_per_step(step.kind); });
  });
  leave_out([](std::vector<Step>& list) {
    while (!list.empty() && once_per_step(list.back().kind)) list.pop_back();
  });
  leave_out([](std::vector<Step>& list) {
    std::erase_if(list, [](const Step& step) { return step.kind == ActionKind::kRecompute; });
  });
  return lists;
}

std::uint64_t schedule_hash(const Schedule& schedule) {
  Fingerprint hash;
  hash.add(schedule.devices.size());
  for (const std::vector<Action>& list : schedule.devices) {
    hash.add(list.size());
    for (const Action& action : list) {
      const bool tie = action.kind == ActionKind::kTieSum;
      hash.add(static_cast<std::uint64_t>(action.kind));
      hash.add(tie ? action.tie().index() : action.stage().index());
      hash.add(action.micro_batch);
    }
  }
  return hash.value();
}

}  // namespace espalier
