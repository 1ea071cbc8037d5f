// Messages of a staged model, and their order on each channel.
//
// A piece is the samples that micro-batch j of the producer and k of a reader share; it is written (j, k). In
// units of 1 / lcm(all micro-batch counts of the crossing's stages) pieces are integer intervals, which
// decides whether a destination device already has the samples from a lower reader's message.

#include <algorithm>
#include <numeric>

#include "espalier/base/check.h"
#include "espalier/schedule/schedule.h"
#include "espalier/schedule/shares.h"

namespace espalier {
namespace {

constexpr std::uint32_t kAbsent = 0xffffffff;

// Where each F and each B or I stands in each device's list.
class Positions {
 public:
  Positions(const StagedModel& model, const std::vector<std::vector<Action>>& devices)
      : of_device_(devices.size()) {
    for (std::size_t d = 0; d < devices.size(); ++d) {
      for (std::uint32_t i = 0; i < devices[d].size(); ++i) {
        const Action& action = devices[d][i];
        const bool forward = action.kind == ActionKind::kForward;
        const bool backward =
            action.kind == ActionKind::kBackward || action.kind == ActionKind::kInputGradient;
        if (!forward && !backward) continue;
        if (action.stage().index() >= model.stages.size()) continue;
        const std::uint32_t count = model.stages[action.stage().index()].micro_batches;
        if (action.micro_batch >= count) continue;
        of_stage(d, action.stage(), count).at(2 * action.micro_batch + (forward ? 0 : 1)) = i;
      }
    }
  }

  std::uint32_t forward(DeviceId device, StageId stage, std::uint32_t j) const {
    return find(device, stage, 2 * j);
  }
  std::uint32_t backward(DeviceId device, StageId stage, std::uint32_t j) const {
    return find(device, stage, 2 * j + 1);
  }

 private:
  struct OfStage {
    StageId stage;
    std::vector<std::uint32_t> position;  // by 2 · micro-batch + (backward ? 1 : 0)
  };
  std::vector<std::uint32_t>& of_stage(std::size_t device, StageId stage, std::uint32_t count) {
    for (OfStage& entry : of_device_[device]) {
      if (entry.stage == stage) return entry.position;
    }
    of_device_[device].push_back({stage, std::vector<std::uint32_t>(2 * std::size_t{count}, kAbsent)});
    return of_device_[device].back().position;
  }
  std::uint32_t find(DeviceId device, StageId stage, std::uint32_t index) const {
    if (device.index() >= of_device_.size()) return kAbsent;
    for (const OfStage& entry : of_device_[device.index()]) {
      if (entry.stage == stage) return entry.position[index];
    }
    return kAbsent;
  }
  std::vector<std::vector<OfStage>> of_device_;  // few stages each: searched linearly
};

struct PlacedMessage {
  std::uint64_t channel = 0;   // its two devices, the sender first
  std::uint32_t position = 0;  // of its producer in the sender's list
  Message message;
  friend bool operator<(const PlacedMessage& a, const PlacedMessage& b) {
    if (a.channel != b.channel) return a.channel < b.channel;
    return a.position != b.position ? a.position < b.position : a.message < b.message;
  }
};

// The samples that travel between devices of one micro-batch of one crossing.
class Delivered {
 public:
  void clear() { pieces_.clear(); }

  // Adds the piece unless all its samples went this way already; says whether it was added.
  bool add(std::uint64_t way, std::uint64_t begin, std::uint64_t end) {
    std::uint64_t covered = 0;
    for (const Piece& piece : pieces_) {
      if (piece.way != way) continue;
      const std::uint64_t low = std::max(piece.begin, begin);
      const std::uint64_t high = std::min(piece.end, end);
      if (low < high) covered += high - low;
    }
    if (covered >= end - begin) return false;
    pieces_.push_back({way, begin, end});
    return true;
  }

 private:
  struct Piece {
    std::uint64_t way = 0, begin = 0, end = 0;
  };
  std::vector<Piece> pieces_;
};

std::uint64_t channel_of(DeviceId from, DeviceId to) {
  return std::uint64_t{from.index()} << 32 | to.index();
}

class ChannelBuilder {
 public:
  ChannelBuilder(const StagedModel& model, const std::vector<std::vector<Action>>& devices)
      : model_(model), owners_(owners_of(model)), positions_(model, devices) {}

  std::vector<Channel> build() {
    for (std::uint32_t c = 0; c < model_.crossings.size(); ++c) {
      unit_ = count(model_.crossings[c].from);
      for (const Crossing::Reader& reader : model_.crossings[c].readers)
        unit_ = std::lcm(unit_, std::uint64_t{count(reader.stage)});
      for (std::uint32_t j = 0; j < count(model_.crossings[c].from); ++j) {
        forward_of(c, j);
        if (model_.crossings[c].returns) backward_of(c, j);
      }
    }
    std::sort(messages_.begin(), messages_.end());
    std::vector<Channel> channels;
    for (auto first = messages_.begin(); first != messages_.end();) {
      const auto last = std::find_if(
          first, messages_.end(), [&](const PlacedMessage& each) { return each.channel != first->channel; });
      Channel channel{DeviceId(first->channel >> 32), DeviceId(first->channel & 0xffffffff), {}};
      channel.messages.reserve(static_cast<std::size_t>(last - first));
      for (; first != last; ++first) channel.messages.push_back(first->message);
      channels.push_back(std::move(channel));
    }
    return channels;
  }

 private:
  std::uint32_t count(StageId stage) const { return model_.stages[stage.index()].micro_batches; }
  const StagedReplica& replica_of(StageId stage, std::uint32_t j) const {
    return model_.stages[stage.index()].replicas[owners_[stage.index()][j].replica];
  }
  // The samples that j of `producer` and k of `reader` share, in units.
  std::pair<std::uint64_t, std::uint64_t> piece(StageId producer, std::uint32_t j, StageId reader,
                                                std::uint32_t k) const {
    if (count(producer) == unit_ && count(reader) == unit_) return {std::max(j, k), std::min(j, k) + 1};
    const std::uint64_t a = unit_ / count(producer);
    const std::uint64_t b = unit_ / count(reader);
    return {std::max(j * a, k * b), std::min((j + 1) * a, (k + 1) * b)};
  }

  void forward_of(std::uint32_t c, std::uint32_t j) {
    const Crossing& crossing = model_.crossings[c];
    const std::vector<DeviceId>& sources = replica_of(crossing.from, j).devices;
    delivered_.clear();  // by target, whoever sends
    for (const Crossing::Reader& reader : crossing.readers) {
      const auto range = overlapping(j, count(crossing.from), count(reader.stage));
      for (std::uint32_t k = range.begin; k < range.end; ++k) {
        const std::vector<DeviceId>& targets = replica_of(reader.stage, k).devices;
        const auto [begin, end] = piece(crossing.from, j, reader.stage, k);
        for (std::size_t i = 0; i < targets.size(); ++i) {
          if (contains(sources, targets[i]) || !delivered_.add(targets[i].index(), begin, end)) continue;
          const DeviceId source = sources[i % sources.size()];
          add(source, targets[i], positions_.forward(source, crossing.from, j),
              {Message::Direction::kForward, c, reader.stage, j, k});
        }
      }
    }
  }

  void backward_of(std::uint32_t c, std::uint32_t j) {
    const Crossing& crossing = model_.crossings[c];
    const std::vector<DeviceId>& targets = replica_of(crossing.from, j).devices;
    delivered_.clear();  // by source and target
    for (const Crossing::Reader& reader : crossing.readers) {
      if (!flows_back(crossing, reader)) continue;
      const auto range = overlapping(j, count(crossing.from), count(reader.stage));
      for (std::uint32_t k = range.begin; k < range.end; ++k) {
        const std::vector<DeviceId>& sources = replica_of(reader.stage, k).devices;
        const auto [begin, end] = piece(crossing.from, j, reader.stage, k);
        for (std::size_t i = 0; i < targets.size(); ++i) {
          const DeviceId source = sources[i % sources.size()];
          if (contains(sources, targets[i]) || !delivered_.add(channel_of(source, targets[i]), begin, end))
            continue;
          add(source, targets[i], last_backward(source, crossing, j, begin, end),
              {Message::Direction::kBackward, c, reader.stage, j, k});
        }
      }
    }
  }

  // The position of the last backward on `device` that adds to the gradient of these samples.
  std::uint32_t last_backward(DeviceId device, const Crossing& crossing, std::uint32_t j, std::uint64_t begin,
                              std::uint64_t end) const {
    std::uint32_t last = 0;
    for (const Crossing::Reader& reader : crossing.readers) {
      if (!flows_back(crossing, reader)) continue;
      const auto range = overlapping(j, count(crossing.from), count(reader.stage));
      for (std::uint32_t k = range.begin; k < range.end; ++k) {
        const auto [b, e] = piece(crossing.from, j, reader.stage, k);
        if (e <= begin || end <= b || !contains(replica_of(reader.stage, k).devices, device)) continue;
        const std::uint32_t position = positions_.backward(device, reader.stage, k);
        last = std::max(last, position);  // absent is the largest
      }
    }
    return last;
  }

  // A message whose producer stands nowhere is left out: such lists are refused as incomplete.
  void add(DeviceId from, DeviceId to, std::uint32_t position, const Message& message) {
    if (position != kAbsent) messages_.push_back({channel_of(from, to), position, message});
  }

  const StagedModel& model_;
  Owners owners_;
  Positions positions_;
  std::uint64_t unit_ = 1;
  Delivered delivered_;
  std::vector<PlacedMessage> messages_;
};

}  // namespace

Schedule with_channels(const StagedModel& model, std::vector<std::vector<Action>> devices) {
  std::vector<Channel> channels = ChannelBuilder(model, devices).build();
  return {std::move(devices), std::move(channels)};
}

}  // namespace espalier
