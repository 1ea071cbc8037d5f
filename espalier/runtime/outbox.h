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

  // The value of every message of that passage; of a token any tensor of one byte. Until it is sent, nobody
  // may write the value.
  void hand_in(const Passage& passage, const at::Tensor& value);
  void hand_in(const Passage& passage, const std::function<at::Tensor(const Message&)>& value_of);

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
  using StridesKey = std::tuple<DeviceId, Message::Direction, std::uint32_t, StageId>;

  void send(const Channel& channel, Outgoing& outgoing, const Action& after);
  void record(const Posted& posted);

  const DeviceView& view_;
  Transport& transport_;
  StepRecorder& recorder_;
  std::vector<Channel> channels_;
  std::map<StridesKey, Strides> strides_;  // told with the first message
  std::deque<Posted> posted_;
};

}  // namespace espalier
