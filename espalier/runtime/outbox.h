#pragma once

// The sending ends of a device's channels. Includes libtorch; runtime/ only.
//
// A channel's messages go out in order, each as soon as its producer has handed its value in. Sending never
// blocks; finish() waits.

#include <ATen/ATen.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "espalier/runtime/device_view.h"
#include "espalier/runtime/step_recorder.h"
#include "espalier/runtime/transport.h"
#include "espalier/runtime/wire.h"

namespace espalier {

class Outbox {
 public:
  // All must outlive it.
  Outbox(const DeviceView& view, Transport& transport, StepRecorder& recorder);

  void start_step();

  // The values of the messages of a micro-batch of the crossing's producer, in one direction, that have none
  // yet; of a token any tensor of one byte. Undefined: it comes later. Until it is sent, nobody may write it.
  using ValueOf = std::function<at::Tensor(const Message&)>;
  void hand_in(Message::Direction direction, std::uint32_t crossing, std::uint32_t producer_micro_batch,
               const ValueOf& value_of);

  // All those messages, by reader and consumer's micro-batch.
  const std::vector<const Message*>& messages(Message::Direction direction, std::uint32_t crossing,
                                              std::uint32_t producer_micro_batch) const;

  // Sends what has its turn, and drops what has been sent; `after` is the action that ended.
  void post(const Action& after);

  // Waits until everything is sent.
  void finish();

 private:
  struct Outgoing {
    const Message* message = nullptr;
    at::Tensor value;  // from hand_in to its send
    bool ready = false;
  };
  struct Channel {
    DeviceId to;
    std::vector<Outgoing> messages;
    std::size_t next = 0;
  };
  struct Posted {
    const Message* message = nullptr;  // null: strides
    DeviceId to;
    Action producer;
    Bytes bytes;
    Clock::time_point when;
    std::shared_ptr<Pending> pending;
  };
  using ShareKey = std::tuple<Message::Direction, std::uint32_t, std::uint32_t>;
  struct OfShare {
    std::vector<const Message*> messages;
    std::vector<std::pair<std::size_t, std::size_t>> places;  // channel, and place in it; as `messages`
  };
  using StridesKey = std::tuple<DeviceId, Message::Direction, std::uint32_t, StageId>;

  void send(const Channel& channel, Outgoing& outgoing, const Action& after);
  void record(const Posted& posted);

  const DeviceView& view_;
  Transport& transport_;
  StepRecorder& recorder_;
  std::vector<Channel> channels_;
  std::map<ShareKey, OfShare> by_share_;
  std::map<StridesKey, Strides> strides_;  // told with the first message
  std::deque<Posted> posted_;
};

}  // namespace espalier
