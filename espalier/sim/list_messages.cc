// Messages of plans whose micro-batches have one size and whose replicas are single devices, from their
// lists. Whoever goes through a list in order meets what it sends in the order of ranks: by source device,
// position there, Message.

#include <algorithm>

#include "espalier/sim/list_builder.h"

namespace espalier::internal {

bool ListBuilder::has_one_size() const {
  return equal_counts_ &&
         std::all_of(model_->stages.begin(), model_->stages.end(), [](const StagedStage& stage) {
           return std::all_of(stage.replicas.begin(), stage.replicas.end(),
                              [](const StagedReplica& replica) { return replica.devices.size() == 1; });
         });
}

DeviceId ListBuilder::device_of(StageId stage, std::uint32_t j) const {
  return seats_[seat_of_[owner_begin_[stage.index()] + j]].device;
}

std::uint32_t ListBuilder::place_of(StageId stage, std::uint32_t j, Place which) const {
  return place(place_at_[owner_begin_[stage.index()] + j], which);
}

void ListBuilder::find_messages(const std::vector<std::vector<Action>>& lists) {
  list_reads();
  ranked_.clear();
  built_channels_.clear();
  channel_to_.assign(device_count_, kNone);
  out_->sends_begin.resize(out_->entries.size() + 1);
  std::uint32_t slot = 0;
  for (const DeviceId device : out_->devices) {
    const std::size_t first = ranked_.size();
    for (const Action& action : lists[device.index()]) {
      out_->sends_begin[slot] = narrow(ranked_.size());
      if (action.kind == ActionKind::kForward) send_forward(device, slot, action);
      if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kInputGradient) {
        send_back(device, slot, action);
      }
      ++slot;
    }
    number_channels(device, first);
  }
  out_->sends_begin[slot] = narrow(ranked_.size());
  sort_by_channel();
}

// By stage: what it reads, ascending crossing.
void ListBuilder::list_reads() {
  reads_begin_.assign(model_->stages.size() + 2, 0);
  for (const Crossing& crossing : model_->crossings) {
    for (const Crossing::Reader& reader : crossing.readers) ++reads_begin_[reader.stage.index() + 2];
  }
  begin_buckets(reads_begin_);
  reads_.resize(first_reader_.back());
  for (std::uint32_t c = 0; c < model_->crossings.size(); ++c) {
    const std::vector<Crossing::Reader>& readers = model_->crossings[c].readers;
    for (std::uint32_t r = 0; r < readers.size(); ++r) {
      reads_[reads_begin_[readers[r].stage.index() + 1]++] = {c, first_reader_[c] + r};
    }
  }
  reads_begin_.pop_back();
}

// One message to each device that reads a crossing: for the first reader there, consumed by whoever runs
// first.
void ListBuilder::send_forward(DeviceId device, std::uint32_t slot, const Action& action) {
  const std::size_t stage = action.stage().index();
  const std::uint32_t j = action.micro_batch;
  for (std::uint32_t c = out_->crossings_begin[stage]; c < out_->crossings_begin[stage + 1]; ++c) {
    const std::vector<Crossing::Reader>& readers = model_->crossings[c].readers;
    for (std::size_t r = 0; r < readers.size(); ++r) {
      const DeviceId to = device_of(readers[r].stage, j);
      if (to == device) continue;
      const auto is_there = [&](const Crossing::Reader& other) { return device_of(other.stage, j) == to; };
      const auto here = readers.begin() + static_cast<std::ptrdiff_t>(r);
      if (std::any_of(readers.begin(), here, is_there)) continue;
      BuiltMessage built{{Message::Direction::kForward, c, readers[r].stage, j, j}, device, to};
      built.producer = slot;
      built.release = out_->always();
      built.consumer = kNone;
      built.reader = first_reader_[c] + narrow(r);
      for (auto other = here; other != readers.end(); ++other) {
        if (!is_there(*other)) continue;
        built.consumer = std::min(built.consumer, place_of(other->stage, j, kForwardPlace));
      }
      ESP_CHECK(built.consumer != kNone, c);
      ranked_.push_back(built);
    }
  }
}

// One gradient from each device that reads a crossing: when the last reader there has run.
void ListBuilder::send_back(DeviceId device, std::uint32_t slot, const Action& action) {
  const std::size_t stage = action.stage().index();
  const std::uint32_t j = action.micro_batch;
  for (std::uint32_t i = reads_begin_[stage]; i < reads_begin_[stage + 1]; ++i) {
    const std::uint32_t c = reads_[i].crossing;
    const Crossing& crossing = model_->crossings[c];
    const Crossing::Reader& own = crossing.readers[reads_[i].reader - first_reader_[c]];
    const DeviceId to = device_of(crossing.from, j);
    if (to == device || !flows_back(crossing, own)) continue;
    std::uint32_t first = kNone, last = slot;
    for (std::uint32_t r = 0; r < crossing.readers.size(); ++r) {
      const Crossing::Reader& other = crossing.readers[r];
      if (!flows_back(crossing, other) || device_of(other.stage, j) != device) continue;
      if (first == kNone) first = r;
      last = std::max(last, place_of(other.stage, j, kBackwardPlace));
    }
    if (last != slot) continue;
    BuiltMessage built{{Message::Direction::kBackward, c, crossing.readers[first].stage, j, j}, device, to};
    built.producer = slot;
    built.release = out_->always();
    built.consumer = place_of(crossing.from, j, kBackwardPlace);
    built.reader = first_reader_[c] + first;
    ESP_CHECK(built.consumer != kNone, c);
    ranked_.push_back(built);
  }
}

// Channels from a device, whose messages begin at `first`: ascending target.
void ListBuilder::number_channels(DeviceId device, std::size_t first) {
  const auto sent = std::span(ranked_).subspan(first);
  targets_.clear();
  for (const BuiltMessage& built : sent) {
    std::uint32_t& channel = channel_to_[built.to.index()];
    if (channel == kNone) targets_.push_back(built.to);
    channel = 0;
  }
  std::sort(targets_.begin(), targets_.end());
  for (const DeviceId to : targets_) {
    channel_to_[to.index()] = narrow(built_channels_.size());
    built_channels_.push_back({device, to, 0});
  }
  for (BuiltMessage& built : sent) {
    built.channel = channel_to_[built.to.index()];
    ++built_channels_[built.channel].count;
  }
  for (const DeviceId to : targets_) channel_to_[to.index()] = kNone;
}

void ListBuilder::sort_by_channel() {
  order_.assign(1, 0);  // by channel: where its next message stands
  for (const BuiltChannel& channel : built_channels_) order_.push_back(order_.back() + channel.count);
  built_.resize(ranked_.size());
  by_rank_.resize(ranked_.size());
  for (std::uint32_t rank = 0; rank < ranked_.size(); ++rank) {
    const std::uint32_t at = order_[ranked_[rank].channel]++;
    built_[at] = ranked_[rank];
    built_[at].rank = rank;
    by_rank_[rank] = at;
  }
}

}  // namespace espalier::internal
