#include "espalier/schedule/dependencies.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "espalier/base/check.h"

namespace espalier {
namespace {

// The samples of one crossing, cut into units.
class Samples {
 public:
  Samples(const StagedModel& model, const Crossing& crossing) : model_(model), crossing_(crossing) {
    units_ = stage(crossing.from).micro_batches;
    for (const Crossing::Reader& reader : crossing.readers) {
      units_ = std::lcm(units_, std::uint64_t{stage(reader.stage).micro_batches});
    }
  }
  std::uint64_t units() const { return units_; }
  std::uint32_t micro_batch(StageId s, std::uint64_t unit) const {
    return static_cast<std::uint32_t>(unit / (units_ / stage(s).micro_batches));
  }
  const std::vector<DeviceId>& devices(StageId s, std::uint64_t unit) const {
    const std::uint32_t wanted = micro_batch(s, unit);
    for (const StagedReplica& replica : stage(s).replicas) {
      if (std::binary_search(replica.micro_batches.begin(), replica.micro_batches.end(), wanted)) {
        return replica.devices;
      }
    }
    static const std::vector<DeviceId> none;
    return none;
  }
  // The units of a message: those in both micro-batches.
  std::pair<std::uint64_t, std::uint64_t> range(const Message& message) const {
    const std::uint64_t producer = units_ / stage(crossing_.from).micro_batches;
    const std::uint64_t reader = units_ / stage(message.reader).micro_batches;
    return {
        std::max(message.producer_micro_batch * producer, message.consumer_micro_batch * reader),
        std::min((message.producer_micro_batch + 1) * producer, (message.consumer_micro_batch + 1) * reader)};
  }

 private:
  const StagedStage& stage(StageId s) const { return model_.stages[s.index()]; }
  const StagedModel& model_;
  const Crossing& crossing_;
  std::uint64_t units_ = 1;
};

bool among(DeviceId device, const std::vector<DeviceId>& devices) {
  return std::count(devices.begin(), devices.end(), device) > 0;
}

bool gradient_flows(const Crossing& crossing, const Crossing::Reader& reader) {
  if (!crossing.returns) return false;
  return crossing.token || reader.gradient.count() != 0;
}

void forward_messages(const StagedModel& model, std::uint32_t c, std::set<SentMessage>& messages) {
  const Crossing& crossing = model.crossings[c];
  const Samples samples(model, crossing);
  for (std::uint64_t unit = 0; unit < samples.units(); ++unit) {
    const std::vector<DeviceId>& sources = samples.devices(crossing.from, unit);
    std::set<DeviceId> served(sources.begin(), sources.end());
    for (const Crossing::Reader& reader : crossing.readers) {  // ascending: the lowest reader serves a device
      const std::vector<DeviceId>& targets = samples.devices(reader.stage, unit);
      for (std::size_t rank = 0; rank < targets.size(); ++rank) {
        if (!served.insert(targets[rank]).second) continue;
        messages.insert(
            {sources[rank % sources.size()],
             targets[rank],
             {Message::Direction::kForward, c, reader.stage, samples.micro_batch(crossing.from, unit),
              samples.micro_batch(reader.stage, unit)}});
      }
    }
  }
}

void backward_messages(const StagedModel& model, std::uint32_t c, std::set<SentMessage>& messages) {
  const Crossing& crossing = model.crossings[c];
  const Samples samples(model, crossing);
  for (std::uint64_t unit = 0; unit < samples.units(); ++unit) {
    const std::vector<DeviceId>& targets = samples.devices(crossing.from, unit);
    for (std::size_t rank = 0; rank < targets.size(); ++rank) {
      std::set<DeviceId> heard;
      for (const Crossing::Reader& reader : crossing.readers) {
        const std::vector<DeviceId>& sources = samples.devices(reader.stage, unit);
        if (!gradient_flows(crossing, reader) || among(targets[rank], sources)) continue;
        const DeviceId source = sources[rank % sources.size()];
        if (!heard.insert(source).second) continue;
        messages.insert(
            {source,
             targets[rank],
             {Message::Direction::kBackward, c, reader.stage, samples.micro_batch(crossing.from, unit),
              samples.micro_batch(reader.stage, unit)}});
      }
    }
  }
}

std::vector<DeviceId> all_devices(const StagedStage& stage) {
  std::set<DeviceId> devices;
  for (const StagedReplica& replica : stage.replicas)
    devices.insert(replica.devices.begin(), replica.devices.end());
  return {devices.begin(), devices.end()};
}

void sort_unique(std::vector<ActionPlace>& places) {
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
}

class FactsBuilder {
 public:
  FactsBuilder(const StagedModel& model, const Schedule& schedule)
      : model_(model), schedule_(schedule), index_(schedule) {}

  ScheduleFacts build() {
    for (std::uint32_t c = 0; c < schedule_.channels.size(); ++c) {
      const Channel& channel = schedule_.channels[c];
      for (const Message& message : channel.messages) {
        facts_.messages.push_back({{channel.from, channel.to, message}, c, {}, {}, {}, {}, {}});
        describe(facts_.messages.back());
      }
    }
    link_slots();
    for (const Crossing& crossing : model_.crossings) local_edges(crossing);
    for (std::size_t d = 0; d < schedule_.devices.size(); ++d) sums_of(DeviceId(d));
    std::sort(facts_.local.begin(), facts_.local.end());
    facts_.local.erase(std::unique(facts_.local.begin(), facts_.local.end()), facts_.local.end());
    return std::move(facts_);
  }

 private:
  ActionPlace forward(DeviceId device, StageId stage, std::uint32_t j) const {
    const auto position = index_.find(device, {ActionKind::kForward, stage, j});
    ESP_CHECK(position.has_value(), device, stage, j);
    return {device, *position};
  }
  ActionPlace backward(DeviceId device, StageId stage, std::uint32_t j) const {
    const auto place = index_.backward_start(device, stage, j);
    ESP_CHECK(place.has_value(), device, stage, j);
    return *place;
  }
  ActionPlace backward_end(DeviceId device, StageId stage, std::uint32_t j) const {
    const auto place = index_.backward_end(device, stage, j);
    ESP_CHECK(place.has_value(), device, stage, j);
    return *place;
  }

  void describe(MessageFacts& facts) {
    const auto& [from, to, message] = facts.sent;
    const Crossing& crossing = model_.crossings[message.crossing];
    const Samples samples(model_, crossing);
    const auto [begin, end] = samples.range(message);
    const bool is_forward = message.direction == Message::Direction::kForward;
    std::vector<ActionPlace> released_by;
    for (const Crossing::Reader& reader : crossing.readers) {
      if (reader.stage == message.reader) facts.bytes = is_forward ? reader.bytes : reader.gradient;
      for (std::uint64_t unit = begin; unit < end; ++unit) {
        if (!among(is_forward ? to : from, samples.devices(reader.stage, unit))) continue;
        const std::uint32_t k = samples.micro_batch(reader.stage, unit);
        if (is_forward) {
          facts.consumers.push_back(forward(to, reader.stage, k));
          released_by.push_back(!reader.saved           ? forward(to, reader.stage, k)
                                : reader.for_input_only ? backward(to, reader.stage, k)
                                                        : backward_end(to, reader.stage, k));
        } else if (gradient_flows(crossing, reader)) {
          facts.producers.push_back(backward(from, reader.stage, k));
        }
      }
    }
    if (is_forward) {
      facts.producers.push_back(forward(from, crossing.from, message.producer_micro_batch));
      fill_slot(facts, std::move(released_by));
    } else {
      facts.consumers.push_back(backward(to, crossing.from, message.producer_micro_batch));
      facts.receiver_forward = forward(to, crossing.from, message.producer_micro_batch);
    }
    sort_unique(facts.producers);
    sort_unique(facts.consumers);
  }

  void fill_slot(MessageFacts& facts, std::vector<ActionPlace> released_by) {
    const Message& message = facts.sent.message;
    auto& edge = edges_[{message.crossing, message.reader, facts.sent.to}];
    const auto [entry, fresh] = edge.emplace(message.consumer_micro_batch, facts_.slots.size());
    if (fresh) facts_.slots.push_back({facts.sent.to, Bytes(), std::nullopt, {}});
    facts.slot = entry->second;
    SlotFacts& slot = facts_.slots[entry->second];
    slot.bytes += facts.bytes;
    slot.released_by.insert(slot.released_by.end(), released_by.begin(), released_by.end());
    sort_unique(slot.released_by);
  }

  // With n slots, the i-th micro-batch of an edge uses the slot that the (i - n)-th gave back.
  void link_slots() {
    for (const auto& [edge, micro_batches] : edges_) {
      const StagedStage& reader = model_.stages[std::get<StageId>(edge).index()];
      const std::size_t slots = reader.slots ? *reader.slots : reader.in_flight + std::size_t{1};
      std::vector<std::size_t> in_order;
      for (const auto& [micro_batch, slot] : micro_batches) {
        if (in_order.size() >= slots) facts_.slots[slot].before = in_order[in_order.size() - slots];
        in_order.push_back(slot);
      }
    }
  }

  void local_edges(const Crossing& crossing) {
    const Samples samples(model_, crossing);
    for (std::uint64_t unit = 0; unit < samples.units(); ++unit) {
      const std::uint32_t j = samples.micro_batch(crossing.from, unit);
      for (const Crossing::Reader& reader : crossing.readers) {
        const std::uint32_t k = samples.micro_batch(reader.stage, unit);
        for (const DeviceId device : samples.devices(crossing.from, unit)) {
          if (!among(device, samples.devices(reader.stage, unit))) continue;
          facts_.local.emplace_back(forward(device, crossing.from, j), forward(device, reader.stage, k));
          if (!gradient_flows(crossing, reader)) continue;
          facts_.local.emplace_back(backward(device, reader.stage, k), backward(device, crossing.from, j));
        }
      }
    }
  }

  void sums_of(DeviceId device) {
    const std::vector<Action>& list = schedule_.devices[device.index()];
    std::vector<std::uint32_t> sums;  // so far, their positions
    for (std::uint32_t i = 0; i < list.size(); ++i) {
      auto awaited = sums.rbegin();
      if (list[i].kind == ActionKind::kUpdate) {
        awaited = std::find_if(sums.rbegin(), sums.rend(), [&](std::uint32_t sum) {
          return concerns(model_, list[sum], list[i].stage());
        });
      } else if (!is_sum(list[i].kind)) {
        continue;
      }
      if (awaited != sums.rend())
        facts_.sums.emplace_back(ActionPlace{device, *awaited}, ActionPlace{device, i});
      if (is_sum(list[i].kind)) sums.push_back(i);
    }
  }

  const StagedModel& model_;
  const Schedule& schedule_;
  ActionIndex index_;
  ScheduleFacts facts_;
  // Edges of trace.h, and the slot of each of their micro-batches.
  std::map<std::tuple<std::uint32_t, StageId, DeviceId>, std::map<std::uint32_t, std::size_t>> edges_;
};

}  // namespace

std::vector<SentMessage> expected_messages(const StagedModel& model) {
  std::set<SentMessage> messages;
  for (std::uint32_t c = 0; c < model.crossings.size(); ++c) {
    forward_messages(model, c, messages);
    backward_messages(model, c, messages);
  }
  return {messages.begin(), messages.end()};
}

std::vector<DeviceId> expected_devices(const StagedModel& model, const Action& action) {
  if (action.kind == ActionKind::kTieSum) {
    if (action.tie().index() >= model.ties.size() || action.micro_batch != 0) return {};
    std::set<DeviceId> devices;
    for (const StageId stage : model.ties[action.tie().index()].stages) {
      const std::vector<DeviceId> more = all_devices(model.stages[stage.index()]);
      devices.insert(more.begin(), more.end());
    }
    return {devices.begin(), devices.end()};
  }
  if (action.stage().index() >= model.stages.size()) return {};
  const StagedStage& stage = model.stages[action.stage().index()];
  const bool reduce = action.kind == ActionKind::kAllReduce;
  if (reduce || action.kind == ActionKind::kUpdate) {
    if (action.micro_batch != 0 || !(reduce ? reduces(stage) : updates(stage))) return {};
    return all_devices(stage);
  }
  if (action.kind == ActionKind::kRecompute && !recomputes(stage)) return {};
  const bool half = action.kind == ActionKind::kInputGradient || action.kind == ActionKind::kWeightGradient;
  if (half && !can_split(stage)) return {};
  for (const StagedReplica& replica : stage.replicas) {
    const auto& share = replica.micro_batches;
    if (std::find(share.begin(), share.end(), action.micro_batch) == share.end()) continue;
    std::vector<DeviceId> devices = replica.devices;
    std::sort(devices.begin(), devices.end());
    return devices;
  }
  return {};
}

bool concerns(const StagedModel& model, const Action& action, StageId stage) {
  if (action.kind != ActionKind::kTieSum) return action.stage() == stage;
  const std::vector<StageId>& stages = model.ties[action.tie().index()].stages;
  return std::find(stages.begin(), stages.end(), stage) != stages.end();
}

ScheduleFacts schedule_facts(const StagedModel& model, const Schedule& schedule) {
  return FactsBuilder(model, schedule).build();
}

ActionIndex::ActionIndex(const Schedule& schedule) : sorted_(schedule.devices.size()) {
  for (std::size_t d = 0; d < schedule.devices.size(); ++d) {
    for (std::uint32_t i = 0; i < schedule.devices[d].size(); ++i)
      sorted_[d].emplace_back(schedule.devices[d][i], i);
    std::sort(sorted_[d].begin(), sorted_[d].end());
  }
}

std::optional<std::uint32_t> ActionIndex::find(DeviceId device, const Action& action) const {
  if (device.index() >= sorted_.size()) return std::nullopt;
  const auto& list = sorted_[device.index()];
  const auto found = std::lower_bound(list.begin(), list.end(), std::pair(action, std::uint32_t{0}));
  if (found == list.end() || found->first != action) return std::nullopt;
  return found->second;
}

std::optional<ActionPlace> ActionIndex::either(DeviceId device, ActionKind a, ActionKind b, StageId stage,
                                               std::uint32_t micro_batch) const {
  for (const ActionKind kind : {a, b}) {
    if (const auto position = find(device, {kind, stage, micro_batch})) return ActionPlace{device, *position};
  }
  return std::nullopt;
}

std::optional<ActionPlace> ActionIndex::backward_start(DeviceId device, StageId stage,
                                                       std::uint32_t micro_batch) const {
  return either(device, ActionKind::kBackward, ActionKind::kInputGradient, stage, micro_batch);
}

std::optional<ActionPlace> ActionIndex::backward_end(DeviceId device, StageId stage,
                                                     std::uint32_t micro_batch) const {
  return either(device, ActionKind::kBackward, ActionKind::kWeightGradient, stage, micro_batch);
}

}  // namespace espalier
