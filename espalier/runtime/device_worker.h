#pragma once

// One device of a run: its stages, its list of actions, its ends of the channels. Runs in one thread.
// Includes libtorch; runtime/ only.
//
// Nothing but compute waits. After each action, first come the sends whose turn it is, then the receives
// whose slot became free; both in channel order (docs/semantics.md, time; the slots are those of trace.h).

#include <ATen/ATen.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "espalier/runtime/executor.h"
#include "espalier/runtime/memory_meter.h"
#include "espalier/runtime/stage_runner.h"
#include "espalier/runtime/wire.h"

namespace espalier {

class DeviceWorker {
 public:
  DeviceWorker(const Job& job, Session& session, const DataSource& data, Transport& transport,
               const ExecutorOptions& options, DeviceId device);

  // Runs the device's list once and waits until all its sends are complete.
  StepOutcome step();

  DeviceId device() const { return device_; }

 private:
  static constexpr Message::Direction kForwardWay = Message::Direction::kForward;
  static constexpr Message::Direction kBackwardWay = Message::Direction::kBackward;

  struct Incoming {
    const Message* message = nullptr;
    DeviceId from;
    Action waiter;                       // the first action that consumes it
    std::optional<std::size_t> slot_of;  // index in incoming_: that one must be released before
    std::optional<Action> posted_after;  // gradients: the forward of the receiving micro-batch
    std::uint32_t uses = 0;              // actions that release it
    std::uint32_t uses_left = 0;
    bool slot_free = false;
    std::shared_ptr<Pending> layout, payload;
    Clock::time_point posted;
    Clock::time_point arrived;
    bool taken = false;
    at::Tensor value;
  };
  struct InChannel {
    DeviceId from;
    std::vector<std::size_t> items;  // of incoming_, in order
    std::size_t next = 0;            // to be posted
  };
  struct Outgoing {
    const Message* message = nullptr;
    at::Tensor value;  // from the end of its producer to its post
    bool ready = false;
  };
  struct OutChannel {
    DeviceId to;
    std::vector<Outgoing> items;
    std::size_t next = 0;
  };
  struct Flight {  // a posted send
    const Message* message = nullptr;
    DeviceId to;
    Action producer;
    Bytes bytes;
    Clock::time_point posted;
    std::shared_ptr<Pending> pending;
  };
  // What identifies the pieces of a crossing on this device, sizes of micro-batches being equal.
  using Piece = std::tuple<Message::Direction, std::uint32_t, std::uint32_t>;  // crossing, micro-batch
  struct Local {  // a crossing's micro-batch whose producer is on this device too
    at::Tensor value;
    std::uint32_t readers_left = 0;
  };
  struct StageHere {
    StageId id;
    Holding* holding = nullptr;
    std::unique_ptr<StageRunner> runner;
    std::vector<std::uint32_t> reads, sends;  // crossings with a tensor, as in the runner's interface
    std::vector<std::uint32_t> token_reads, token_sends;
    std::vector<at::Tensor> last_received;  // for Fault::kStaleReceive
  };

  void make_stages();
  void make_channels();
  void make_slots();
  StageHere& stage(StageId id);
  const Crossing& crossing(std::uint32_t index) const { return job_.staged.crossings[index]; }
  bool stage_is_here(StageId id, std::uint32_t micro_batch) const;
  std::vector<StageId> readers_here(std::uint32_t crossing, std::uint32_t micro_batch) const;
  const Crossing::Reader* reader(std::uint32_t crossing, StageId stage) const;
  bool gradient_returns(std::uint32_t crossing, StageId reader) const;

  void start_step();
  void run(const Action& action);
  void forward(const Action& action);
  void backward(const Action& action);
  void hand_back(const Action& action, StageHere& here, const std::vector<at::Tensor>& gradients);
  std::vector<at::Tensor> gradients_of_sent(const Action& action, StageHere& here);
  void all_reduce_gradients(const Action& action);
  void sum_tie(const Action& action);
  void apply_update(const Action& action);
  void deliver(const Message& like, at::Tensor value);
  void release(const Action& action);
  void post(const Action& after);
  void post_sends(const Action& after);
  void post_receives();
  at::Tensor await(std::size_t incoming);
  std::vector<std::size_t> incoming_of(Message::Direction direction, std::uint32_t crossing,
                                       std::uint32_t micro_batch) const;
  void landed(const Flight& flight);
  void finish_sends();
  void record(const Action& action, Stream stream, Clock::time_point start);
  void measure_holdings();
  void sample_memory(Clock::time_point when, Bytes live);
  RandomKey key_of(const Action& action) const;
  std::string describe(const Message& message) const;

  const Job& job_;
  Session& session_;
  const DataSource& data_;
  Transport& transport_;
  const ExecutorOptions& options_;
  DeviceId device_;
  std::vector<StageHere> stages_;
  std::map<std::string, TensorId, std::less<>> tensor_by_name_;

  std::vector<Incoming> incoming_;
  std::map<Piece, std::vector<std::size_t>> incoming_by_piece_;  // by lowest reader of the sender
  std::vector<InChannel> in_;
  std::vector<OutChannel> out_;
  using LayoutKey = std::tuple<DeviceId, Message::Direction, std::uint32_t, StageId>;
  std::map<LayoutKey, Layout> sent_layouts_, received_layouts_;  // told once, with the first message
  std::set<LayoutKey> asked_layouts_;

  // Of the running step.
  std::map<Piece, Local> local_;
  std::map<Piece, std::map<StageId, at::Tensor>> gradient_parts_;  // of readers on this device, by stage
  std::set<Action> done_;
  std::deque<Flight> flights_;
  StepOutcome outcome_;
  MemoryByCategory held_;  // what the stages hold beside activations
  Bytes last_sample_;      // live bytes of the last memory sample
  MemoryMeter meter_;
};

}  // namespace espalier
