#include "espalier/runtime/outbox.h"

#include <utility>

namespace espalier {

Outbox::Outbox(const DeviceView& view, Transport& transport, StepRecorder& recorder)
    : view_(view), transport_(transport), recorder_(recorder) {
  for (const espalier::Channel& channel : view.schedule().channels) {
    if (channel.from != view.device()) continue;
    Channel& out = channels_.emplace_back(Channel{channel.to, {}, 0});
    for (const Message& message : channel.messages) out.messages.push_back({&message, {}, false});
  }
}

void Outbox::start_step() {
  for (Channel& channel : channels_) {
    channel.next = 0;
    for (Outgoing& outgoing : channel.messages) outgoing.ready = false;
  }
  posted_.clear();
}

void Outbox::hand_in(const Passage& passage, const at::Tensor& value) {
  hand_in(passage, [&](const Message&) { return value; });
}

void Outbox::hand_in(const Passage& passage, const std::function<at::Tensor(const Message&)>& value_of) {
  for (Channel& channel : channels_) {
    for (std::size_t i = channel.next; i < channel.messages.size(); ++i) {
      Outgoing& outgoing = channel.messages[i];
      const Message& message = *outgoing.message;
      if (Passage{message.direction, message.crossing, message.producer_micro_batch} != passage) continue;
      outgoing.value = value_of(message);
      outgoing.ready = true;
    }
  }
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
