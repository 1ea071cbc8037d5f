#pragma once

// One training step of the usual plans, without a TaskGraph: stages on single devices of their own, equal
// micro-batches shared j mod r, limits that do not grow along an edge, so that every replica follows its own
// 1F1B or GPipe pattern (make_schedule). The evaluator's inner loop; equal to compile, run_tasks and the
// memory of trace.h to the nanosecond and byte, by test.
//
// The caller fills StepInput; StepSimulation reads it and nothing else. Everything is flat and reused.

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "espalier/cluster/cluster.h"

namespace espalier::internal {

using Time = std::int64_t;  // nanoseconds; bytes are plain integers here as well

// Routes by pair of devices: all of them up front on small clusters, as they are met on large ones.
class RouteTable {
 public:
  explicit RouteTable(const Cluster& cluster);
  static constexpr std::size_t kMaxDense = 128;  // devices

  const Route& of(std::uint32_t from, std::uint32_t to) {
    return dense_.empty() ? met(from, to) : dense_[from * devices_ + to];
  }

 private:
  const Route& met(std::uint32_t from, std::uint32_t to);

  const Cluster* cluster_;
  std::size_t devices_;
  std::vector<Route> dense_;
  std::unordered_map<std::uint64_t, Route> met_;
};

struct StepStage {
  std::uint32_t first_unit = 0, replicas = 1;
  std::uint32_t limit = 1;  // forwards before the first backward; a replica's share caps it
  std::uint32_t slots = 2;  // receive slots per edge
  bool recomputes = false;
  // Bytes on each of its devices: per micro-batch, while an action runs, and always.
  std::int64_t saved = 0, recomputed = 0, forward_workspace = 0, backward_workspace = 0, buffers = 0;
};

struct StepUnit {  // a replica on its device
  std::uint32_t stage = 0, device = 0;
  Time forward = 0, backward = 0, recompute = 0, update = 0;
};

// One tensor (or token) from one stage to another: a crossing and one of its readers.
struct StepEdge {
  std::uint32_t crossing = 0;  // in StepInput::crossings
  std::uint32_t from = 0, to = 0;
  std::int64_t bytes = 0, gradient = 0;
  bool saved = false;    // by the reader
  bool returns = false;  // something travels back
  bool free = false;     // a token without time or links
};

struct StepCrossing {
  std::uint32_t first_edge = 0, edges = 0;
  std::int64_t output = 0;
  bool saved = false;  // by the producer
};

// An all-reduce or tied sum.
struct StepCollective {
  Time hold = 0, latency = 0;
  std::uint32_t first_link = 0, links = 0;      // in StepInput::collective_links
  std::uint32_t first_member = 0, members = 0;  // in StepInput::collective_members: units
  std::uint32_t lowest_device = 0;              // of its members
};

struct StepInput {
  std::uint32_t micro_batches = 1;
  std::size_t link_count = 0;
  bool endpoints = false;  // some route may cost compute time
  std::vector<StepStage> stages;
  std::vector<StepUnit> units;              // by stage, then replica
  std::vector<StepEdge> edges;              // ascending (crossing, to)
  std::vector<StepCrossing> crossings;      // ascending stage
  std::vector<StepCollective> collectives;  // in the order in which they stand in every list
  std::vector<std::uint32_t> collective_links, collective_members;
  RouteTable* routes = nullptr;
};

struct StepPeak {  // of a unit's device, parameters and their like apart
  std::int64_t buffers = 0, activations = 0;
};

class StepSimulation {
 public:
  // Room for ties to be told apart; larger plans are not for this class.
  static constexpr std::size_t kMaxDevices = 1 << 15, kMaxActions = 1 << 20, kMaxCrossings = 1 << 14;

  // False if the orders wait in a circle.
  bool run(const StepInput& input);
  Time iteration() const { return iteration_; }
  const std::vector<StepPeak>& peaks() const { return peaks_; }  // by unit

 private:
  // A unit on its way through its list.
  struct Unit {
    Time lane = 0;  // when its device is free
    Time forward = 0, backward = 0, recompute = 0;
    std::uint32_t forwards = 0, backwards = 0;  // done
    std::uint32_t count = 0, limit = 0;
    std::uint32_t base = 0;                                  // of its ranks in inputs_ and starts
    std::uint32_t waits = 0;                                 // the input that it waits for
    std::uint32_t out = 0, out_end = 0, in = 0, in_end = 0;  // its forward channels, in out_ and in_
    std::uint32_t tail = 0;                                  // collectives done
    std::uint32_t stage = 0, replica = 0;
    bool gives_back_after_forward = false, gives_back_after_backward = false;
  };

  // One direction between two units x → y: its messages go in order, the first may be waiting for links.
  struct Channel {
    Time wire_free = 0;
    std::uint32_t left = 0;                                 // micro-batches, the current one included
    std::uint32_t hop = 0, first_hop = 0, last_hop = 0;     // messages of a micro-batch
    std::uint32_t micro_batch = 0, rank_x = 0, rank_y = 0;  // rank: place in the unit's share
    std::uint32_t step = 0, step_x = 0, step_y = 0;         // to the next one that both units have
    std::uint32_t x = 0, y = 0;
    std::uint32_t slots = 0;  // of y
    std::uint32_t link_count = 0;
    bool queued = false;
    const LinkIndex* links = nullptr;
  };

  struct Hop {  // what one edge needs on one channel
    Time hold = 0, latency = 0;
    Time send = 0, receive = 0;  // endpoints
    std::uint64_t tie = 0;       // source device, crossing, reader: with the position, what breaks ties
    std::uint32_t edge = 0;
    bool free = false, saved = false;
  };

  struct Input {  // of a forward (even) or backward (odd)
    Time ready = 0;
    std::uint32_t missing = 0;
  };

  struct Message {  // by (edge, direction, micro-batch)
    Time arrival = 0;
    Time sent = 0, receive = 0;  // endpoints only: end of the send endpoint, cost of the receive endpoint
  };

  struct Waiting {
    Time ready = 0;
    std::uint64_t tie = 0;
    std::uint32_t channel = 0;  // or channels + collective
    friend bool operator<(const Waiting& a, const Waiting& b) {
      return a.ready != b.ready ? a.ready < b.ready : a.tie < b.tie;
    }
  };

  struct Gathering {
    Time ready = 0;
    std::uint32_t arrived = 0;
    std::uint32_t position = 0;  // in the list of its lowest device
  };

  struct Pair {  // two stages that edges join
    std::uint32_t from = 0, to = 0, edge = 0, edges = 0, channel = 0;
  };

  struct Freed {
    Time time = 0;
    std::int64_t bytes = 0;
  };

  void make_units();
  void find_pairs();
  void make_channels();
  void add_channel(const Pair& pair, std::uint32_t rx, std::uint32_t ry);
  void add_hops(const Pair& pair, Channel& channel, const Route& route, bool forward, std::uint32_t device);
  void spare_lone_links();
  void make_tails();

  template <bool kEndpoints>
  bool run_all();
  template <bool kEndpoints>
  void advance(std::uint32_t index);
  template <bool kEndpoints>
  void run_forward(Unit& unit);
  template <bool kEndpoints>
  void run_backward(Unit& unit);
  void run_tail(std::uint32_t index);
  void run_collective(std::uint32_t collective, Time ready);
  template <bool kEndpoints>
  void post_forward(std::uint32_t index);
  template <bool kEndpoints>
  void post_backward(std::uint32_t index);
  template <bool kEndpoints, bool kForward>
  void deliver(Channel& channel, Time ready);
  void enqueue(const Waiting& waiting);

  void measure_memory(std::uint32_t index);
  void free_later(Time time, std::int64_t bytes);

  Message& message(std::uint32_t edge, bool forward, std::uint32_t micro_batch) {
    return messages_[(2 * edge + (forward ? 0 : 1)) * micro_batches_ + micro_batch];
  }
  std::uint32_t micro_batch_of(const Unit& unit, std::uint32_t rank) const {
    return rank * input_->stages[unit.stage].replicas + unit.replica;
  }
  // The channel that carries an edge's message of a micro-batch.
  std::uint32_t channel_of(std::uint32_t edge, std::uint32_t micro_batch) const;

  const StepInput* input_ = nullptr;
  std::uint32_t micro_batches_ = 0;
  std::vector<Unit> units_;
  std::vector<Input> inputs_;                                           // by 2 · (base + rank) + backward
  std::vector<Time> forward_start_, backward_start_, recompute_start_;  // by base + rank
  std::vector<Message> messages_;
  std::vector<Pair> pairs_;
  std::vector<std::uint32_t> pair_edges_;                    // by pair
  std::vector<std::uint32_t> pair_of_edge_, pair_of_stage_;  // the latter while pairs are being found
  std::vector<std::uint32_t> edges_in_, edges_in_begin_;     // by stage; outgoing ones are consecutive
  std::vector<std::uint32_t> edges_out_begin_, crossings_begin_;
  std::vector<Channel> channels_;             // even: forward; odd: back between the same units
  std::vector<std::uint32_t> channel_index_;  // by pair's first + replica x · replicas y + replica y
  std::vector<Hop> hops_;
  std::vector<std::uint32_t> out_, in_;
  std::vector<Time> link_free_;
  std::vector<std::uint32_t> link_users_;
  std::vector<std::uint32_t> tail_, tail_begin_;  // collectives by unit, in order
  std::vector<Gathering> gatherings_;
  std::vector<Waiting> queue_;  // ascending from queue_head_
  std::size_t queue_head_ = 0;
  std::vector<std::uint32_t> runnable_;
  std::size_t unfinished_ = 0;
  Time iteration_ = 0;
  std::vector<Freed> freed_;  // ascending from freed_head_
  std::size_t freed_head_ = 0;
  std::vector<StepPeak> peaks_;
};

}  // namespace espalier::internal
