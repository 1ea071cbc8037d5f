#include "testing/random_orders.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace espalier::testing {
namespace {

class RandomRun {
 public:
  RandomRun(Rng& rng, const StagedModel& model, std::size_t devices, const RandomOrderOptions& options)
      : rng_(rng), model_(model), options_(options), lists_(devices) {
    for (const StagedStage& stage : model.stages) {
      bool recompute = stage.memory.recomputed > Bytes(), weights = stage.memory.gradients > Bytes();
      bool update = weights;
      for (const StagedReplica& replica : stage.replicas) {
        recompute |= replica.times.recompute > Duration();
        weights |= replica.times.weight_gradient > Duration();
        update |= replica.times.update > Duration();
      }
      State state;
      state.forward = state.again = state.backward = state.end = std::vector<bool>(stage.micro_batches);
      state.again.assign(stage.micro_batches, !recompute);
      state.split.assign(stage.micro_batches, false);
      for (std::uint32_t j = 0; j < stage.micro_batches; ++j) {
        state.split[j] = options.split && weights && pick(3) > 0;
      }
      state.reduced = stage.replicas.size() < 2 || stage.reduced == Bytes();
      state.updated = !update;
      states_.push_back(std::move(state));
    }
    tied_.assign(model.ties.size(), false);
  }

  OrderLists run() {
    for (;;) {
      collect();
      if (choices_.empty()) return std::move(lists_);
      const bool back = options_.depth_first && !backwards_.empty() && pick(4) > 0;
      const std::vector<Choice>& from = back ? backwards_ : choices_;
      const Choice choice = from[pick(from.size())];
      for (const DeviceId device : choice.devices) lists_.at(device.index()).push_back(choice.step);
      choice.done();
    }
  }

 private:
  struct State {
    std::vector<bool> forward, again, backward, end, split;  // by micro-batch
    bool reduced = false, updated = false;
  };
  struct Choice {
    Step step;
    std::vector<DeviceId> devices;
    std::function<void()> done;
  };

  std::size_t pick(std::size_t bound) { return static_cast<std::size_t>(rng_.below(bound)); }
  // Micro-batches of `there` that share samples with micro-batch j of `here`.
  std::vector<std::uint32_t> shared(StageId here, std::uint32_t j, StageId there) const {
    const std::uint64_t ours = model_.stages[here.index()].micro_batches;
    const std::uint64_t theirs = model_.stages[there.index()].micro_batches;
    std::vector<std::uint32_t> result;
    for (std::uint32_t k = 0; k < theirs; ++k) {
      if (k * ours < (j + std::uint64_t{1}) * theirs && j * theirs < (k + std::uint64_t{1}) * ours) {
        result.push_back(k);
      }
    }
    return result;
  }
  bool all(const std::vector<bool>& flags, const std::vector<std::uint32_t>& which) const {
    return std::all_of(which.begin(), which.end(), [&](std::uint32_t k) { return flags[k]; });
  }
  static bool returns(const Crossing& crossing, const Crossing::Reader& reader) {
    return crossing.returns && (crossing.token || reader.gradient > Bytes());
  }
  bool forward_inputs(StageId stage, std::uint32_t j) const {
    for (const Crossing& crossing : model_.crossings) {
      for (const Crossing::Reader& reader : crossing.readers) {
        if (reader.stage != stage) continue;
        if (!all(states_[crossing.from.index()].forward, shared(stage, j, crossing.from))) return false;
      }
    }
    return true;
  }
  bool backward_inputs(StageId stage, std::uint32_t j) const {
    for (const Crossing& crossing : model_.crossings) {
      if (crossing.from != stage) continue;
      for (const Crossing::Reader& reader : crossing.readers) {
        if (!returns(crossing, reader)) continue;
        if (!all(states_[reader.stage.index()].backward, shared(stage, j, reader.stage))) return false;
      }
    }
    return true;
  }

  void offer(const Step& step, const std::vector<DeviceId>& devices, std::function<void()> done) {
    choices_.push_back({step, devices, std::move(done)});
    if (step.kind == ActionKind::kBackward || step.kind == ActionKind::kInputGradient ||
        step.kind == ActionKind::kWeightGradient) {
      backwards_.push_back(choices_.back());
    }
  }

  // The next of each sort, of each replica.
  void collect() {
    choices_.clear();
    backwards_.clear();
    for (std::size_t s = 0; s < model_.stages.size(); ++s) {
      for (const StagedReplica& replica : model_.stages[s].replicas) collect(StageId(s), replica);
    }
    if (options_.early_ends) collect_ends();
  }

  void collect(StageId stage, const StagedReplica& replica) {
    State& state = states_[stage.index()];
    const auto next = [&](const std::vector<bool>& flags, bool only_split) -> std::optional<std::uint32_t> {
      for (const std::uint32_t j : replica.micro_batches) {
        if (!flags[j] && (!only_split || state.split[j])) return j;
      }
      return std::nullopt;
    };
    const auto mark = [&](std::vector<bool> State::*flags, std::uint32_t j) {
      return [this, stage, flags, j] { (states_[stage.index()].*flags)[j] = true; };
    };
    if (const auto j = next(state.forward, false); j && forward_inputs(stage, *j)) {
      offer({ActionKind::kForward, stage}, replica.devices, mark(&State::forward, *j));
    }
    if (const auto j = next(state.again, false); j && state.forward[*j]) {
      offer({ActionKind::kRecompute, stage}, replica.devices, mark(&State::again, *j));
    }
    if (const auto j = next(state.backward, false);
        j && state.forward[*j] && state.again[*j] && backward_inputs(stage, *j)) {
      const bool split = state.split[*j];
      offer({split ? ActionKind::kInputGradient : ActionKind::kBackward, stage}, replica.devices,
            [this, stage, split, j = *j] {
              states_[stage.index()].backward[j] = true;
              if (!split) states_[stage.index()].end[j] = true;
            });
    }
    if (const auto j = next(state.end, true); j && state.backward[*j]) {
      offer({ActionKind::kWeightGradient, stage}, replica.devices, mark(&State::end, *j));
    }
  }

  bool over(StageId stage) const {
    const std::vector<bool>& end = states_[stage.index()].end;
    return std::all_of(end.begin(), end.end(), [](bool done) { return done; });
  }
  std::vector<DeviceId> devices_of(const std::vector<StageId>& stages) const {
    std::vector<DeviceId> devices;
    for (const StageId stage : stages) {
      for (const StagedReplica& replica : model_.stages[stage.index()].replicas) {
        devices.insert(devices.end(), replica.devices.begin(), replica.devices.end());
      }
    }
    std::sort(devices.begin(), devices.end());
    devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
    return devices;
  }
  void collect_ends() {
    for (std::size_t s = 0; s < model_.stages.size(); ++s) {
      State& state = states_[s];
      if (!over(StageId(s))) continue;
      if (!state.reduced) {
        offer({ActionKind::kAllReduce, StageId(s)}, devices_of({StageId(s)}),
              [this, s] { states_[s].reduced = true; });
      } else if (!state.updated && ties_done(StageId(s))) {
        offer({ActionKind::kUpdate, StageId(s)}, devices_of({StageId(s)}),
              [this, s] { states_[s].updated = true; });
      }
    }
    for (std::size_t t = 0; t < model_.ties.size(); ++t) {
      const std::vector<StageId>& stages = model_.ties[t].stages;
      const bool ready = std::all_of(stages.begin(), stages.end(), [&](StageId stage) {
        return over(stage) && states_[stage.index()].reduced;
      });
      if (ready && !tied_[t]) offer(Step(TieId(t)), devices_of(stages), [this, t] { tied_[t] = true; });
    }
  }
  bool ties_done(StageId stage) const {
    for (std::size_t t = 0; t < model_.ties.size(); ++t) {
      const std::vector<StageId>& stages = model_.ties[t].stages;
      if (!tied_[t] && std::count(stages.begin(), stages.end(), stage) > 0) return false;
    }
    return true;
  }

  Rng& rng_;
  const StagedModel& model_;
  const RandomOrderOptions options_;
  OrderLists lists_;
  std::vector<State> states_;
  std::vector<bool> tied_;
  std::vector<Choice> choices_, backwards_;
};

}  // namespace

OrderLists random_orders(Rng& rng, const StagedModel& model, std::size_t devices,
                         const RandomOrderOptions& options) {
  return RandomRun(rng, model, devices, options).run();
}

void mutate_orders(Rng& rng, const StagedModel& model, OrderLists& lists) {
  const auto pick = [&](std::size_t bound) { return static_cast<std::size_t>(rng.below(bound)); };
  std::vector<std::size_t> filled;
  for (std::size_t d = 0; d < lists.size(); ++d) {
    if (!lists[d].empty()) filled.push_back(d);
  }
  if (filled.empty()) return;
  std::vector<Step>& list = lists[filled[pick(filled.size())]];
  const auto at = list.begin() + static_cast<std::ptrdiff_t>(pick(list.size()));
  const Step step = *at;
  const auto insert = [&](std::vector<Step>& into) {
    into.insert(into.begin() + static_cast<std::ptrdiff_t>(pick(into.size() + 1)), step);
  };
  switch (pick(8)) {
    case 0:
      list.erase(at);
      break;
    case 1:
      insert(list);
      break;
    case 2:
      insert(lists[pick(lists.size())]);
      list.erase(std::find(list.begin(), list.end(), step));
      break;
    case 3:
      *at = {static_cast<ActionKind>(pick(5)), StageId(pick(model.stages.size()))};
      break;
    default:  // a legal order stays complete
      list.erase(at);
      insert(list);
  }
}

}  // namespace espalier::testing
