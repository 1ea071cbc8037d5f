// Memory over time as a list of intervals (device, category, bytes, [from, to)), written down from trace.h
// and summed at the end. It shares nothing with the simulator, which keeps counters at task starts and ends.

#include <algorithm>
#include <map>
#include <tuple>

#include "espalier/base/check.h"
#include "espalier/trace/timeline.h"

namespace espalier {
namespace {

class HeldMemory {
 public:
  HeldMemory(const StagedModel& model, const Schedule& schedule, const ScheduleFacts& facts,
             const Timeline& timeline)
      : model_(model),
        schedule_(schedule),
        facts_(facts),
        timeline_(timeline),
        index_(schedule),
        changes_(schedule.devices.size()) {}

  std::vector<MemorySample> run() {
    for (const StagedStage& stage : model_.stages) always(stage);
    for (std::size_t d = 0; d < schedule_.devices.size(); ++d) {
      for (std::uint32_t i = 0; i < schedule_.devices[d].size(); ++i) during_action({DeviceId(d), i});
    }
    find_last_transfers();
    for (std::size_t d = 0; d < schedule_.devices.size(); ++d) {
      for (std::uint32_t i = 0; i < schedule_.devices[d].size(); ++i) {
        if (schedule_.devices[d][i].kind == ActionKind::kForward) outputs_of({DeviceId(d), i});
      }
    }
    for (std::size_t m = 0; m < facts_.messages.size(); ++m) gradient(m);
    for (const SlotFacts& slot : facts_.slots) receive_slot(slot);
    return samples();
  }

 private:
  void hold(DeviceId device, MemoryCategory category, Bytes bytes, Duration from, Duration to) {
    if (from == to || bytes == Bytes()) return;
    auto& changes = changes_[device.index()];
    changes[from].bytes[static_cast<std::size_t>(category)] += bytes;
    changes[to].bytes[static_cast<std::size_t>(category)] -= bytes;
  }
  void hold_always(DeviceId device, MemoryCategory category, Bytes bytes) {
    changes_[device.index()][Duration()].bytes[static_cast<std::size_t>(category)] += bytes;
  }

  void always(const StagedStage& stage) {
    for (const StagedReplica& replica : stage.replicas) {
      for (const DeviceId device : replica.devices) {
        hold_always(device, MemoryCategory::kParameters, stage.memory.parameters);
        hold_always(device, MemoryCategory::kGradients, stage.memory.gradients);
        hold_always(device, MemoryCategory::kOptimizer, stage.memory.optimizer_state);
        hold_always(device, MemoryCategory::kBuffers, stage.memory.buffers);
      }
    }
  }

  Duration backward_end(DeviceId device, StageId stage, std::uint32_t micro_batch) const {
    const auto place = index_.backward_end(device, stage, micro_batch);
    ESP_CHECK(place.has_value(), device, stage, micro_batch);
    return timeline_.at(*place).end;
  }

  Duration input_half_end(DeviceId device, StageId stage, std::uint32_t micro_batch) const {
    const auto place = index_.backward_start(device, stage, micro_batch);
    ESP_CHECK(place.has_value(), device, stage, micro_batch);
    return timeline_.at(*place).end;
  }
  Duration kept_until(DeviceId device, StageId stage, std::uint32_t micro_batch, bool for_input_only) const {
    return for_input_only ? input_half_end(device, stage, micro_batch)
                          : backward_end(device, stage, micro_batch);
  }

  // What begins or stays with one action: saved tensors, recomputed ones, workspace.
  void during_action(const ActionPlace& place) {
    const Action& action = schedule_.devices[place.device.index()][place.position];
    if (once_per_step(action.kind)) return at_the_end(place, action);
    const StageMemory& memory = model_.stages[action.stage().index()].memory;
    const Span& span = timeline_.at(place);
    const Duration end = backward_end(place.device, action.stage(), action.micro_batch);
    const Duration input_end = input_half_end(place.device, action.stage(), action.micro_batch);
    const auto activations = [&](Bytes bytes, Duration from, Duration to) {
      hold(place.device, MemoryCategory::kActivations, bytes, from, to);
    };
    const bool forward = action.kind == ActionKind::kForward || action.kind == ActionKind::kRecompute;
    activations(forward ? memory.forward_workspace : memory.backward_workspace, span.start, span.end);
    if (action.kind == ActionKind::kForward) {
      activations(memory.saved - memory.saved_for_input, span.start, end);
      activations(memory.saved_for_input, span.start, input_end);
    }
    if (action.kind == ActionKind::kRecompute) {
      activations(memory.recomputed - memory.recomputed_for_input, span.start, end);
      activations(memory.recomputed_for_input, span.start, input_end);
    }
    if (action.kind == ActionKind::kInputGradient) activations(memory.between_halves, span.end, end);
  }

  // What sums of gradients and updates need while they last.
  void at_the_end(const ActionPlace& place, const Action& action) {
    const Duration end = timeline_.at(place).end;
    if (action.kind == ActionKind::kUpdate) {
      hold(place.device, MemoryCategory::kActivations,
           model_.stages[action.stage().index()].memory.update_workspace, timeline_.at(place).start, end);
      return;
    }
    Bytes room;
    if (action.kind == ActionKind::kTieSum) {
      const Tie& tie = model_.ties[action.tie().index()];
      const DeviceId adds = model_.stages[tie.stages[0].index()].replicas[0].devices[0];
      room = tie.bytes;                                 // the sum
      if (place.device == adds) room += 2 * tie.bytes;  // what it was before, and what is added to it
    } else {
      const StagedStage& stage = model_.stages[action.stage().index()];
      const auto n = static_cast<std::int64_t>(stage.replicas.size());
      const Bytes chunk((stage.reduced.count() + n - 1) / n);
      room = stage.reduced + chunk + chunk;  // all of it, a chunk on its way out, one on its way in
    }
    hold(place.device, MemoryCategory::kBuffers, room, timeline_.sum_arrival(facts_, place), end);
  }

  bool stands_on(DeviceId device, StageId stage, std::uint32_t micro_batch) const {
    return index_.find(device, {ActionKind::kForward, stage, micro_batch}).has_value();
  }

  void find_last_transfers() {
    for (std::size_t m = 0; m < facts_.messages.size(); ++m) {
      const auto& [from, to, message] = facts_.messages[m].sent;
      if (message.direction != Message::Direction::kForward) continue;
      Duration& last = last_transfer_[{from, message.crossing, message.producer_micro_batch}];
      last = std::max(last, timeline_.messages[m].transfer->end);
    }
  }

  // A crossing's output on the device that made it.
  void outputs_of(const ActionPlace& place) {
    const Action& action = schedule_.devices[place.device.index()][place.position];
    for (std::uint32_t c = 0; c < model_.crossings.size(); ++c) {
      const Crossing& crossing = model_.crossings[c];
      if (crossing.from != action.stage()) continue;
      Duration until = timeline_.at(place).end;
      if (const auto sent = last_transfer_.find({place.device, c, action.micro_batch});
          sent != last_transfer_.end()) {
        until = std::max(until, sent->second);
      }
      if (crossing.saved_by_producer) {
        until = std::max(
            until, kept_until(place.device, action.stage(), action.micro_batch, crossing.for_input_only));
      }
      for (const Crossing::Reader& reader : crossing.readers) {
        until = std::max(until, local_use(place.device, action, reader));
      }
      hold(place.device, MemoryCategory::kActivations, crossing.output, timeline_.at(place).start, until);
    }
  }

  // Until when a reader on the producer's own device needs the samples of this forward; 0 if none does.
  Duration local_use(DeviceId device, const Action& producer, const Crossing::Reader& reader) const {
    const std::uint64_t ours = model_.stages[producer.stage().index()].micro_batches;
    const std::uint64_t theirs = model_.stages[reader.stage.index()].micro_batches;
    Duration until;
    for (std::uint32_t k = 0; k < theirs; ++k) {
      // [j / ours, (j + 1) / ours) and [k / theirs, (k + 1) / theirs) share samples.
      const std::uint64_t j = producer.micro_batch;
      if ((j + 1) * theirs <= k * ours || (k + std::uint64_t{1}) * ours <= j * theirs) continue;
      if (!stands_on(device, reader.stage, k)) continue;
      const auto forward = index_.find(device, {ActionKind::kForward, reader.stage, k});
      until = std::max(until, reader.saved ? kept_until(device, reader.stage, k, reader.for_input_only)
                                           : timeline_.at({device, *forward}).end);
    }
    return until;
  }

  // A gradient on its way, at both ends.
  void gradient(std::size_t m) {
    const MessageFacts& facts = facts_.messages[m];
    if (facts.sent.message.direction != Message::Direction::kBackward) return;
    Duration from = timeline_.at(facts.producers.front()).start;
    for (const ActionPlace& producer : facts.producers) from = std::min(from, timeline_.at(producer).start);
    hold(facts.sent.from, MemoryCategory::kActivations, facts.bytes, from,
         timeline_.messages[m].transfer->end);
    hold(facts.sent.to, MemoryCategory::kBuffers, facts.bytes, timeline_.at(*facts.receiver_forward).end,
         timeline_.end_of(facts.consumers));
  }

  void receive_slot(const SlotFacts& slot) {
    const Duration taken =
        slot.before ? timeline_.end_of(facts_.slots[*slot.before].released_by) : Duration();
    hold(slot.device, MemoryCategory::kBuffers, slot.bytes, taken, timeline_.end_of(slot.released_by));
  }

  std::vector<MemorySample> samples() const {
    std::vector<MemorySample> result;
    for (std::size_t d = 0; d < changes_.size(); ++d) {
      MemorySample sample{DeviceId(d), Duration(), {}};
      result.push_back(sample);
      for (const auto& [time, change] : changes_[d]) {
        for (std::size_t i = 0; i < kMemoryCategories; ++i) sample.held.bytes[i] += change.bytes[i];
        sample.time = time;
        if (result.back().time == time) {
          result.back() = sample;
        } else if (result.back().held != sample.held) {
          result.push_back(sample);
        }
      }
    }
    return result;
  }

  const StagedModel& model_;
  const Schedule& schedule_;
  const ScheduleFacts& facts_;
  const Timeline& timeline_;
  ActionIndex index_;
  std::map<std::tuple<DeviceId, std::uint32_t, std::uint32_t>, Duration>
      last_transfer_;                                          // by sender, crossing, producer's micro-batch
  std::vector<std::map<Duration, MemoryByCategory>> changes_;  // by device
};

}  // namespace

Duration Timeline::end_of(const std::vector<ActionPlace>& places) const {
  Duration latest;
  for (const ActionPlace& place : places) latest = std::max(latest, at(place).end);
  return latest;
}

Duration Timeline::sum_arrival(const ScheduleFacts& facts, const ActionPlace& sum) const {
  const Duration reached = sum_reached.at(sum);
  const auto before =
      std::lower_bound(facts.sums.begin(), facts.sums.end(), sum,
                       [](const auto& pair, const ActionPlace& place) { return pair.second < place; });
  const bool found = before != facts.sums.end() && before->second == sum;
  return found ? std::max(reached, at(before->first).end) : reached;
}

std::vector<MemorySample> held_memory(const StagedModel& model, const Schedule& schedule,
                                      const ScheduleFacts& facts, const Timeline& timeline) {
  return HeldMemory(model, schedule, facts, timeline).run();
}

}  // namespace espalier
