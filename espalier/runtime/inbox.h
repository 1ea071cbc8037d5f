#pragma once

// The receiving ends of a device's channels, with their slots. Includes libtorch; runtime/ only.
//
// A channel delivers its messages in order. A receive is posted when every one before it in the channel is
// posted and it has a slot (docs/semantics.md, time): the i-th micro-batch of an edge takes the slot that the
// (i - n)-th gives back, where n are the reader's receive slots; a gradient's receive is posted after
// the forward of its micro-batch. Posting never blocks; only the functions that await a message do.

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "espalier/runtime/device_view.h"
#include "espalier/runtime/step_recorder.h"
#include "espalier/runtime/transport.h"
#include "espalier/runtime/wire.h"

namespace espalier {

class Inbox {
 public:
  // All must outlive it.
  Inbox(const DeviceView& view, Transport& transport, StepRecorder& recorder);

  void start_step();

  // Posts each receive that may be posted once the actions in `done` have run.
  void post(const std::set<Action>& done);

  // Waits for the tensor. Exactly one message carries it here.
  at::Tensor await_tensor(const Passage& passage);
  // Waits for its gradients from other devices, by the lowest stage that reads it there. The inbox then
  // forgets them.
  std::map<StageId, at::Tensor> await_gradients(const Passage& passage);
  // Waits for whatever comes: tokens, or values that nobody looks at.
  void await_all(const Passage& passage);

  // One of the stages here that read it needs it no more: the last one gives the slot back.
  void release(const Passage& passage);
  // No stage here will ask for it again.
  void forget(const Passage& passage);

 private:
  struct Expected {  // one message
    const Message* message = nullptr;
    DeviceId from;
    Action waiter;                       // the first action that consumes it
    std::optional<std::size_t> slot_of;  // index in expected_: that one must be released before
    std::optional<Action> posted_after;  // gradients: the forward of the receiving micro-batch
    std::uint32_t readers = 0;           // stages here that release it
    std::uint32_t readers_left = 0;
    bool slot_free = false;
    std::shared_ptr<Pending> strides, payload;
    Clock::time_point posted;
    bool taken = false;
    at::Tensor value;
  };
  struct Channel {
    DeviceId from;
    std::vector<std::size_t> messages;  // of expected_, in order
    std::size_t next = 0;               // to be posted
  };
  // The strides of a tensor do not change between messages, so they travel once, before the first.
  using StridesKey = std::tuple<DeviceId, Message::Direction, std::uint32_t, StageId>;

  void make_channels();
  void make_slots();
  void post_receive(Expected& expected);
  void await(Expected& expected);
  void take(Expected& expected);
  std::vector<std::size_t> messages_of(const Passage& passage) const;
  static StridesKey strides_key(const Expected& expected);

  const DeviceView& view_;
  Transport& transport_;
  StepRecorder& recorder_;
  std::vector<Expected> expected_;
  std::map<Passage, std::vector<std::size_t>> by_passage_;  // by lowest reader of the sender
  std::vector<Channel> channels_;
  std::map<StridesKey, Strides> strides_;
  std::set<StridesKey> asked_for_strides_;
};

}  // namespace espalier
