#include "espalier/runtime/inbox.h"

#include <algorithm>
#include <utility>

#include "espalier/base/check.h"

namespace espalier {
namespace {

constexpr auto kBackwardWay = Message::Direction::kBackward;

}  // namespace

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
      by_passage_[{message.direction, message.crossing, message.consumer_micro_batch}].push_back(
          expected_.size());
      expected_.push_back(std::move(expected));
    }
  }
  // Gradients that meet here are added up in the order of their readers.
  for (auto& [passage, messages] : by_passage_) {
    std::sort(messages.begin(), messages.end(), [&](std::size_t a, std::size_t b) {
      return expected_[a].message->reader < expected_[b].message->reader;
    });
  }
}

void Inbox::make_slots() {
  std::map<std::pair<std::uint32_t, StageId>, std::vector<std::size_t>> edges;
  for (std::size_t i = 0; i < expected_.size(); ++i) {
    Expected& expected = expected_[i];
    const Message& message = *expected.message;
    if (message.direction == kBackwardWay) {
      const StageId producer = view_.crossing(message.crossing).from;
      expected.posted_after = Action{ActionKind::kForward, producer, message.producer_micro_batch};
      expected.waiter = view_.backward_start(producer, message.producer_micro_batch);
      continue;
    }
    edges[{message.crossing, message.reader}].push_back(i);
    expected.waiter = Action{ActionKind::kForward, message.reader, message.consumer_micro_batch};
    expected.readers =
        static_cast<std::uint32_t>(view_.readers_here(message.crossing, message.consumer_micro_batch).size());
  }
  for (auto& [edge, messages] : edges) {
    std::sort(messages.begin(), messages.end(), [&](std::size_t a, std::size_t b) {
      return expected_[a].message->consumer_micro_batch < expected_[b].message->consumer_micro_batch;
    });
    const std::size_t slots = view_.staged().stages[edge.second.index()].receive_slots();
    for (std::size_t i = slots; i < messages.size(); ++i) {
      expected_[messages[i]].slot_of = messages[i - slots];
    }
  }
}

void Inbox::start_step() {
  for (Expected& expected : expected_) {
    expected.readers_left = expected.readers;
    expected.slot_free = expected.taken = false;
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
      if (expected.slot_of && !expected_[*expected.slot_of].slot_free) break;
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

at::Tensor Inbox::await_tensor(const Passage& passage) {
  const std::vector<std::size_t> messages = messages_of(passage);
  ESP_CHECK(messages.size() == 1, passage.crossing, messages.size());
  await(expected_[messages[0]]);
  return expected_[messages[0]].value;
}

std::map<StageId, at::Tensor> Inbox::await_gradients(const Passage& passage) {
  std::map<StageId, at::Tensor> gradients;
  for (const std::size_t i : messages_of(passage)) {
    await(expected_[i]);
    gradients[expected_[i].message->reader] = std::exchange(expected_[i].value, at::Tensor());
  }
  return gradients;
}

void Inbox::await_all(const Passage& passage) {
  for (const std::size_t i : messages_of(passage)) await(expected_[i]);
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

void Inbox::release(const Passage& passage) {
  for (const std::size_t i : messages_of(passage)) {
    Expected& expected = expected_[i];
    ESP_CHECK(expected.readers_left > 0, view_.describe(*expected.message));
    if (--expected.readers_left == 0) expected.slot_free = true;
  }
}

void Inbox::forget(const Passage& passage) {
  for (const std::size_t i : messages_of(passage)) {
    expected_[i].value.reset();
  }
}

std::vector<std::size_t> Inbox::messages_of(const Passage& passage) const {
  const auto found = by_passage_.find(passage);
  return found == by_passage_.end() ? std::vector<std::size_t>() : found->second;
}

Inbox::StridesKey Inbox::strides_key(const Expected& expected) {
  const Message& message = *expected.message;
  return {expected.from, message.direction, message.crossing, message.reader};
}

}  // namespace espalier
