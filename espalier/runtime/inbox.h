#pragma once

// The receiving ends of a device's channels, with their slots. Includes libtorch; runtime/ only.
//
// A channel delivers its messages in order. A receive is posted when every one before it in the channel is
// posted and it has a slot (docs/semantics.md, time): the i-th micro-batch of an edge takes the slot that the
// (i - n)-th gives back, where n are the reader's receive slots, and all messages that are pieces of it lie
// there; a gradient's receive is posted after the forward of its micro-batch. Posting never blocks; only the
// functions that await a message do.

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "espalier/runtime/device_view.h"
#include "espalier/runtime/pieces.h"
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

  // Waits for all that comes of these samples: pieces of the tensor, which may overlap.
  std::vector<Piece> await_tensors(std::uint32_t crossing, const SampleRange& samples);
  // Waits for all that comes back: sums from other devices, each in the name of the lowest stage that reads
  // it there. The inbox then forgets them.
  std::vector<Piece> await_gradients(std::uint32_t crossing, const SampleRange& samples);
  // Waits for whatever comes: tokens, or values that nobody looks at.
  void await_all(Message::Direction direction, std::uint32_t crossing, const SampleRange& samples);

  // A stage here has run forward on these samples: once all have that read a message, its value goes.
  void read(std::uint32_t crossing, const SampleRange& samples);
  // A stage here that reads these samples needs them no more: the last one gives the slot back.
  void release(std::uint32_t crossing, const SampleRange& samples);

 private:
  struct Expected {  // one message
    const Message* message = nullptr;
    DeviceId from;
    SampleRange samples;
    Action waiter;                       // the first action that consumes it
    std::optional<std::size_t> slot;     // index in slots_, of what is no gradient
    std::optional<Action> posted_after;  // gradients: the forward of the receiving micro-batch
    std::uint32_t readers = 0;           // micro-batches of stages here that read and release it
    std::uint32_t reads_left = 0, releases_left = 0;
    std::shared_ptr<Pending> strides, payload;
    Clock::time_point posted;
    bool taken = false;
    at::Tensor value;
  };
  struct Slot {                         // of one micro-batch of an edge
    std::optional<std::size_t> before;  // index in slots_: that one must be released before
    std::uint32_t messages = 0;         // that fill it
    std::uint32_t messages_left = 0;    // that are not released
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
  std::vector<std::size_t> messages_of(Message::Direction direction, std::uint32_t crossing,
                                       const SampleRange& samples) const;
  static StridesKey strides_key(const Expected& expected);

  const DeviceView& view_;
  Transport& transport_;
  StepRecorder& recorder_;
  std::vector<Expected> expected_;
  std::vector<Slot> slots_;
  // By the producer's micro-batch; of each, by reader and consumer's micro-batch.
  std::map<std::tuple<Message::Direction, std::uint32_t, std::uint32_t>, std::vector<std::size_t>> by_share_;
  std::vector<Channel> channels_;
  std::map<StridesKey, Strides> strides_;
  std::set<StridesKey> asked_for_strides_;
};

}  // namespace espalier
