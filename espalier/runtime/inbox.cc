#include "espalier/runtime/inbox.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "espalier/base/check.h"

namespace espalier {
Inbox::Inbox(const DeviceView& view, Transport& transport, StepRecorder& recorder)
    : view_(view), transport_(transport), recorder_(recorder) {
  make_channels();
  make_slots();
}

void Inbox::make_channels() {
  for (const espalier::Channel& channel : view_.schedule().channels) {
    if (channel.to != view_.device()) continue;
    Channel& in = channels_.emplace_back(Channel{channel.from, {}, 0});
    for (const Message& message : channel.messages) {
      Expected expected;
      expected.message = &message;
      expected.from = channel.from;
      in.messages.push_back(expected_.size());
      expected.samples = view_.samples(message);
      by_share_[{message.direction, message.crossing, message.producer_micro_batch}].push_back(
          expected_.size());
      expected_.push_back(std::move(expected));
    }
  }
  for (auto& [share, messages] : by_share_) {
    std::sort(messages.begin(), messages.end(),
              [&](std::size_t a, std::size_t b) { return *expected_[a].message < *expected_[b].message; });
  }
}

void Inbox::make_slots() {
  using Edge = std::pair<std::uint32_t, StageId>;
  std::map<Edge, std::map<std::uint32_t, std::size_t>> edges;  // the slot of each consumer's micro-batch
  for (Expected& expected : expected_) {
    const Message& message = *expected.message;
    if (message.direction == kBackwardWay) {
      const Share producer{view_.crossing(message.crossing).from, message.producer_micro_batch};
      expected.posted_after = Action{ActionKind::kForward, producer.stage, producer.micro_batch};
      expected.waiter = view_.backward_start(producer);
      continue;
    }
    expected.waiter = Action{ActionKind::kForward, message.reader, message.consumer_micro_batch};
    expected.readers =
        static_cast<std::uint32_t>(view_.readers_here(message.crossing, expected.samples).size());
    const auto [place, is_new] =
        edges[{message.crossing, message.reader}].try_emplace(message.consumer_micro_batch, slots_.size());
    if (is_new) slots_.emplace_back();
    ++slots_[place->second].messages;
    expected.slot = place->second;
  }
  for (const auto& [edge, micro_batches] : edges) {
    const std::size_t slots = view_.staged().stages[edge.second.index()].receive_slots();
    std::vector<std::size_t> in_order;
    for (const auto& [micro_batch, slot] : micro_batches) {
      if (in_order.size() >= slots) slots_[slot].before = in_order[in_order.size() - slots];
      in_order.push_back(slot);
    }
  }
}

void Inbox::start_step() {
  for (Slot& slot : slots_) slot.messages_left = slot.messages;
  for (Expected& expected : expected_) {
    expected.reads_left = expected.releases_left = expected.readers;
    expected.taken = false;
    expected.strides.reset();
    expected.payload.reset();
    expected.value.reset();
  }
  for (Channel& channel : channels_) channel.next = 0;
}

void Inbox::post(const std::set<Action>& done) {
  for (Channel& channel : channels_) {
    for (; channel.next < channel.messages.size(); ++channel.next) {
      Expected& expected = expected_[channel.messages[channel.next]];
      const auto before = expected.slot ? slots_[*expected.slot].before : std::nullopt;
      if (before && slots_[*before].messages_left > 0) break;
      if (expected.posted_after && !done.contains(*expected.posted_after)) break;
      post_receive(expected);
    }
  }
}

void Inbox::post_receive(Expected& expected) {
  const Link link{expected.from, view_.device(), Lane::kMessages};
  const std::uint32_t crossing = expected.message->crossing;
  expected.posted = Clock::now();
  if (view_.crossing(crossing).token) {
    expected.payload = transport_.post_receive(link, at::kByte, 1);
    return;
  }
  const Payload payload = view_.payload(*expected.message);
  if (asked_for_strides_.insert(strides_key(expected)).second && !payload.sizes.empty()) {
    expected.strides =
        transport_.post_receive(link, at::kLong, static_cast<std::int64_t>(payload.sizes.size()));
  }
  const std::int64_t elements = c10::multiply_integers(payload.sizes);
  if (elements > 0) expected.payload = transport_.post_receive(link, payload.type, elements);
}

std::vector<Piece> Inbox::await_tensors(std::uint32_t crossing, const SampleRange& samples) {
  std::vector<Piece> pieces;
  for (const std::size_t i : messages_of(kForwardWay, crossing, samples)) {
    await(expected_[i]);
    pieces.push_back({expected_[i].message->reader, expected_[i].samples, expected_[i].value});
  }
  return pieces;
}

std::vector<Piece> Inbox::await_gradients(std::uint32_t crossing, const SampleRange& samples) {
  std::vector<Piece> pieces;
  for (const std::size_t i : messages_of(kBackwardWay, crossing, samples)) {
    Expected& expected = expected_[i];
    await(expected);
    pieces.push_back(
        {expected.message->reader, expected.samples, std::exchange(expected.value, at::Tensor())});
  }
  return pieces;
}

void Inbox::await_all(Message::Direction direction, std::uint32_t crossing, const SampleRange& samples) {
  for (const std::size_t i : messages_of(direction, crossing, samples)) await(expected_[i]);
}

void Inbox::await(Expected& expected) {
  if (expected.taken) return;
  try {
    take(expected);
  } catch (const WorkerError& error) {
    throw WorkerError("device " + view_.name(view_.device()) + " waits for " +
                      view_.describe(*expected.message) + " from device " + view_.name(expected.from) + ": " +
                      error.what());
  }
}

void Inbox::take(Expected& expected) {
  const std::uint32_t crossing = expected.message->crossing;
  Strides& strides = strides_[strides_key(expected)];
  if (expected.strides) {
    const at::Tensor told = expected.strides->wait();
    strides.assign(told.const_data_ptr<std::int64_t>(), told.const_data_ptr<std::int64_t>() + told.numel());
    expected.strides.reset();
  }
  const auto payload = std::exchange(expected.payload, nullptr);
  at::Tensor flat = payload ? payload->wait() : at::Tensor();
  const auto completed = payload ? payload->completed() : std::nullopt;
  const auto arrived = std::max(expected.posted, completed.value_or(Clock::now()));
  Bytes bytes;
  if (!view_.crossing(crossing).token) {
    const Payload form = view_.payload(*expected.message);
    if (!flat.defined()) flat = at::empty({0}, form.type);
    expected.value = from_wire(flat, form.sizes, strides).to(view_.computes_on());
    bytes = bytes_of(expected.value);
  }
  expected.taken = true;
  recorder_.received(*expected.message, expected.from, expected.waiter, bytes, expected.posted, arrived);
}

void Inbox::read(std::uint32_t crossing, const SampleRange& samples) {
  for (const std::size_t i : messages_of(kForwardWay, crossing, samples)) {
    Expected& expected = expected_[i];
    ESP_CHECK(expected.reads_left > 0, view_.describe(*expected.message));
    if (--expected.reads_left == 0) expected.value.reset();
  }
}

void Inbox::release(std::uint32_t crossing, const SampleRange& samples) {
  for (const std::size_t i : messages_of(kForwardWay, crossing, samples)) {
    Expected& expected = expected_[i];
    ESP_CHECK(expected.releases_left > 0, view_.describe(*expected.message));
    if (--expected.releases_left == 0) --slots_[*expected.slot].messages_left;
  }
}

std::vector<std::size_t> Inbox::messages_of(Message::Direction direction, std::uint32_t crossing,
                                            const SampleRange& samples) const {
  std::vector<std::size_t> found;
  for (const Share& producer : view_.shares(view_.crossing(crossing).from, samples)) {
    const auto messages = by_share_.find({direction, crossing, producer.micro_batch});
    if (messages == by_share_.end()) continue;
    std::copy_if(messages->second.begin(), messages->second.end(), std::back_inserter(found),
                 [&](std::size_t i) { return overlap(expected_[i].samples, samples); });
  }
  return found;
}

Inbox::StridesKey Inbox::strides_key(const Expected& expected) {
  const Message& message = *expected.message;
  return {expected.from, message.direction, message.crossing, message.reader};
}

}  // namespace espalier
