#include "espalier/runtime/outbox.h"

#include <algorithm>
#include <utility>

namespace espalier {

Outbox::Outbox(const DeviceView& view, Transport& transport, StepRecorder& recorder)
    : view_(view), transport_(transport), recorder_(recorder) {
  for (const espalier::Channel& channel : view.schedule().channels) {
    if (channel.from != view.device()) continue;
    Channel& out = channels_.emplace_back(Channel{channel.to, {}, 0});
    for (const Message& message : channel.messages) {
      by_share_[{message.direction, message.crossing, message.producer_micro_batch}].places.emplace_back(
          channels_.size() - 1, out.messages.size());
      out.messages.push_back({&message, {}, false});
    }
  }
  const auto at = [&](const std::pair<std::size_t, std::size_t>& place) {
    return channels_[place.first].messages[place.second].message;
  };
  for (auto& [share, of] : by_share_) {
    std::sort(of.places.begin(), of.places.end(),
              [&](const auto& a, const auto& b) { return *at(a) < *at(b); });
    for (const auto& place : of.places) of.messages.push_back(at(place));
  }
}

void Outbox::start_step() {
  for (Channel& channel : channels_) {
    channel.next = 0;
    for (Outgoing& outgoing : channel.messages) outgoing.ready = false;
  }
  posted_.clear();
}

void Outbox::hand_in(Message::Direction direction, std::uint32_t crossing, std::uint32_t producer_micro_batch,
                     const ValueOf& value_of) {
  const auto found = by_share_.find({direction, crossing, producer_micro_batch});
  if (found == by_share_.end()) return;
  for (const auto& [channel, place] : found->second.places) {
    Outgoing& outgoing = channels_[channel].messages[place];
    if (outgoing.ready) continue;
    outgoing.value = value_of(*outgoing.message);
    outgoing.ready = outgoing.value.defined();
  }
}

const std::vector<const Message*>& Outbox::messages(Message::Direction direction, std::uint32_t crossing,
                                                    std::uint32_t producer_micro_batch) const {
  static const std::vector<const Message*> kNone;
  const auto found = by_share_.find({direction, crossing, producer_micro_batch});
  return found == by_share_.end() ? kNone : found->second.messages;
}

void Outbox::post(const Action& after) {
  for (Channel& channel : channels_) {
    while (channel.next < channel.messages.size() && channel.messages[channel.next].ready) {
      send(channel, channel.messages[channel.next++], after);
    }
  }
  // What is sent gives its memory back, in this thread.
  std::erase_if(posted_, [&](const Posted& posted) {
    if (!posted.pending->completed()) return false;
    record(posted);
    return true;
  });
}

void Outbox::send(const Channel& channel, Outgoing& outgoing, const Action& after) {
  const Link link{view_.device(), channel.to, Lane::kMessages};
  const Message& message = *outgoing.message;
  const bool is_token = view_.crossing(message.crossing).token;
  at::Tensor payload = std::exchange(outgoing.value, at::Tensor());
  if (!is_token) {
    const auto [place, is_new] =
        strides_.try_emplace(StridesKey{channel.to, message.direction, message.crossing, message.reader});
    Strides& strides = place->second;
    if (is_new) strides = strides_on_wire(payload);
    if (is_new && !strides.empty()) {
      posted_.push_back({nullptr, channel.to, after, Bytes(), Clock::now(),
                         transport_.post_send(link, at::tensor(strides, at::kLong))});
    }
    payload = to_wire(payload, strides);
  }
  if (payload.numel() == 0) return;
  const Bytes bytes = is_token ? Bytes() : bytes_of(payload);
  const auto when = Clock::now();
  posted_.push_back({&message, channel.to, after, bytes, when, transport_.post_send(link, payload)});
}

void Outbox::finish() {
  for (const Posted& posted : posted_) {
    posted.pending->wait();
    record(posted);
  }
  posted_.clear();
}

void Outbox::record(const Posted& posted) {
  if (posted.message == nullptr) return;
  recorder_.sent(*posted.message, posted.to, posted.producer, posted.bytes, posted.when,
                 posted.pending->completed().value_or(Clock::now()));
}

}  // namespace espalier
