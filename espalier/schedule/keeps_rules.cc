#include "espalier/schedule/keeps_rules.h"

#include <algorithm>
#include <optional>
#include <set>

#include "espalier/schedule/shares.h"

namespace espalier {
namespace {

class Rules {
 public:
  Rules(const StagedModel& model, std::size_t devices)
      : model_(model),
        owners_(owners_of(model)),
        kinds_(model.stages.size()),
        halves_(model.stages.size()),
        here_(model.stages.size(), nullptr),
        seats_(devices),
        ties_(devices) {
    for (std::size_t s = 0; s < model.stages.size(); ++s) add_stage(s);
    for (std::size_t t = 0; t < model.ties.size(); ++t) add_tie(TieId(t));
  }

  bool keep(const std::vector<std::vector<Action>>& lists) {
    for (std::size_t d = 0; d < lists.size(); ++d) {
      for (Seat& seat : seats_[d]) here_[seat.stage] = &seat;
      for (const Action& action : lists[d]) {
        if (!(once_per_step(action.kind) ? takes_once(d, action) : takes(action))) return false;
      }
      for (const Seat& seat : seats_[d]) {
        if (!is_complete(seat)) return false;
        here_[seat.stage] = nullptr;
      }
      if (!std::all_of(ties_[d].begin(), ties_[d].end(), [](const TieSeat& tie) { return tie.met; }))
        return false;
    }
    return true;
  }

 private:
  enum Met : std::uint8_t { kForward = 1, kAgain = 2, kWhole = 4, kInput = 8, kWeights = 16 };

  struct Kinds {  // that a stage has beside F and B
    bool again = false, sum = false, update = false, halves = false;
    std::uint8_t before_backward() const { return again ? kForward | kAgain : kForward; }
  };
  struct Seat {  // of a stage on a device
    std::size_t stage = 0;
    std::uint32_t replica = 0;
    std::vector<std::uint8_t> met;  // by place in the replica's share
    // Micro-batches of F, R, B or I, W ascend: the least that may be next.
    std::uint32_t forward = 0, again = 0, backward = 0, weights = 0;
    std::uint32_t held = 0;  // in flight
    bool sum = false, update = false;
    std::optional<ActionKind> end = {};  // the last of A, T, U
  };
  struct TieSeat {
    TieId tie;
    bool met = false;
  };

  void add_stage(std::size_t s) {
    const StagedStage& stage = model_.stages[s];
    kinds_[s] = {recomputes(stage), reduces(stage), updates(stage), can_split(stage)};
    halves_[s].assign(stage.micro_batches, 0);
    for (std::uint32_t r = 0; r < stage.replicas.size(); ++r) {
      for (const DeviceId device : stage.replicas[r].devices) {
        Seat seat{.stage = s, .replica = r, .met = {}};
        seat.met.assign(stage.replicas[r].micro_batches.size(), 0);
        seats_.at(device.index()).push_back(std::move(seat));
      }
    }
  }

  void add_tie(TieId tie) {
    std::set<DeviceId> devices;
    for (const StageId stage : model_.ties[tie.index()].stages) {
      for (const StagedReplica& replica : model_.stages[stage.index()].replicas) {
        devices.insert(replica.devices.begin(), replica.devices.end());
      }
    }
    for (const DeviceId device : devices) ties_.at(device.index()).push_back({tie});
  }

  bool takes(const Action& action) {
    const std::size_t s = action.stage().index();
    const std::uint32_t j = action.micro_batch;
    if (s >= here_.size() || here_[s] == nullptr || j >= owners_[s].size()) return false;
    Seat& seat = *here_[s];
    const Owner& owner = owners_[s][j];
    if (owner.replica != seat.replica || seat.end) return false;
    const Kinds& kinds = kinds_[s];
    std::uint8_t& met = seat.met[owner.rank];
    const auto comes = [&](bool may, std::uint32_t& next, Met what) {
      if (!may || j < next) return false;
      next = j + 1;
      met = static_cast<std::uint8_t>(met | what);
      return true;
    };
    switch (action.kind) {
      case ActionKind::kForward:
        return comes(met == 0, seat.forward, kForward) && ++seat.held <= model_.stages[s].in_flight;
      case ActionKind::kRecompute:
        return comes(kinds.again && met == kForward, seat.again, kAgain);
      case ActionKind::kBackward:
        --seat.held;
        return comes(met == kinds.before_backward(), seat.backward, kWhole);
      case ActionKind::kInputGradient:
        return comes(kinds.halves && met == kinds.before_backward(), seat.backward, kInput);
      case ActionKind::kWeightGradient:
        --seat.held;
        return comes((met & (kInput | kWeights)) == kInput, seat.weights, kWeights);
      default:
        return false;
    }
  }

  // A, T or U, which stand in this order behind all else of their stages.
  bool takes_once(std::size_t device, const Action& action) {
    if (action.micro_batch != 0) return false;
    if (action.kind == ActionKind::kTieSum) return takes_tie(device, action);
    const std::size_t s = action.stage().index();
    if (s >= here_.size() || here_[s] == nullptr) return false;
    const bool sum = action.kind == ActionKind::kAllReduce;
    bool& met = sum ? here_[s]->sum : here_[s]->update;
    if (met || !(sum ? kinds_[s].sum : kinds_[s].update)) return false;
    met = true;
    return ends(s, action.kind);
  }

  bool takes_tie(std::size_t device, const Action& action) {
    const auto tie = std::find_if(ties_[device].begin(), ties_[device].end(),
                                  [&](const TieSeat& each) { return each.tie == action.tie(); });
    if (tie == ties_[device].end() || tie->met) return false;
    tie->met = true;
    const std::vector<StageId>& stages = model_.ties[action.tie().index()].stages;
    return std::all_of(stages.begin(), stages.end(), [&](StageId stage) {
      return here_[stage.index()] == nullptr || ends(stage.index(), action.kind);
    });
  }

  bool ends(std::size_t stage, ActionKind kind) {
    std::optional<ActionKind>& end = here_[stage]->end;
    if (end && kind < *end) return false;
    end = kind;
    return true;
  }

  // All of its share is done, in halves or not on all devices of the replica.
  bool is_complete(const Seat& seat) {
    const Kinds& kinds = kinds_[seat.stage];
    if (seat.sum != kinds.sum || seat.update != kinds.update) return false;
    const auto& share = model_.stages[seat.stage].replicas[seat.replica].micro_batches;
    for (std::size_t i = 0; i < share.size(); ++i) {
      const int backward = seat.met[i] & ~kinds.before_backward();
      if (backward != kWhole && backward != (kInput | kWeights)) return false;
      std::uint8_t& others = halves_[seat.stage][share[i]];
      if (others != 0 && others != seat.met[i]) return false;
      others = seat.met[i];
    }
    return true;
  }

  const StagedModel& model_;
  const Owners owners_;
  std::vector<Kinds> kinds_;                       // by stage
  std::vector<std::vector<std::uint8_t>> halves_;  // by stage and micro-batch: what another device has met
  std::vector<Seat*> here_;                        // by stage: on the device at hand
  std::vector<std::vector<Seat>> seats_;           // by device
  std::vector<std::vector<TieSeat>> ties_;         // by device
};

}  // namespace

bool keeps_rules(const StagedModel& model, const std::vector<std::vector<Action>>& lists) {
  return Rules(model, lists.size()).keep(lists);
}

}  // namespace espalier
