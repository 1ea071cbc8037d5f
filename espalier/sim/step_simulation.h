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
  // False if the orders wait in a circle, or the plan is so large that ties could not be told apart.
  bool run(const StepInput& input);
  Time iteration() const { return iteration_; }
  const std::vector<StepPeak>& peaks() const { return peaks_; }  // by unit

 private:
  // Arrays by direction hold forward at 0 and backward at 1. Code that treats both alike uses the direction
  // as an index and does not branch on it: the processor has no branch to mispredict.
  enum Direction : std::uint32_t { kForward = 0, kBackward = 1 };

  static constexpr Time kNever = Duration::max().count();

  // A forward or backward of a unit, by base + 2 · rank + direction; rank: place in the unit's share.
  struct Slot {
    Time ready = 0;              // latest arrival so far
    Time end = kNever;           // known once it has run
    std::uint32_t missing = 0;   // messages, and its unit
    std::uint32_t position = 0;  // in the device's list
  };

  // A unit on its way through its list.
  struct Unit {
    Time lane = 0;  // when its device is free
    Time duration[2] = {0, 0};
    Time recompute = 0;
    std::uint32_t done[2] = {0, 0};
    std::uint32_t count = 0, limit = 0;
    std::uint32_t next = kForward;                           // direction of the action that comes next
    std::uint32_t base = 0;                                  // slot of its first forward
    std::uint32_t posts[2] = {0, 0}, posts_end[2] = {0, 0};  // channels to look at after an action, in posts_
    std::uint32_t tail = 0;                                  // collectives done
    std::uint32_t stage = 0, replica = 0;

    std::uint32_t slot(std::uint32_t rank, std::uint32_t direction) const {
      return base + 2 * rank + direction;
    }
  };

  // One direction between two units: its messages go in order, the first may be waiting for links. It may go
  // once the slots `producer` and `release` have ended; they are never_ or always_ where there is nothing
  // (more) to send, or no receive slot to wait for. (Numbers and not pointers, which as far as the compiler
  // knows might be those inside our vectors.)
  struct Channel {
    std::uint32_t producer = 0, release = 0;
    Time wire_free = 0;
    std::uint32_t hop = 0, first_hop = 0, last_hop = 0;  // messages of a micro-batch
    std::uint32_t left = 0;                              // micro-batches, the current one included
    std::uint32_t micro_batch = 0, from_slot = 0, to_slot = 0;
    std::uint32_t step = 0, from_step = 0, to_step = 0;  // to the next micro-batch that both units have
    std::uint32_t from = 0, to = 0;                      // units
    std::uint32_t direction = kForward;
    // From to_slot to that of the micro-batch that used its receive slot before, and the first to_slot for
    // which there is one; forward only.
    std::uint32_t slots_back = 0;
    std::uint32_t first_release = 0;
    LinkIndex two_links[2] = {0, 0};  // the first two, or one twice
    const LinkIndex* links = nullptr;
  };

  struct Hop {  // what one edge needs on one channel
    Time hold = 0, latency = 0;
    std::uint64_t tie = 0;  // all of Waiting's but the position
    std::uint32_t edge = 0;
    std::uint32_t row = 0;         // of its messages
    std::uint32_t link_count = 0;  // 0 if nobody else uses them
    std::uint32_t saved = 0;       // 1: until the end of B
    Time send = 0, receive = 0;    // endpoints
  };

  struct Waiting {  // for links
    Time ready = 0;
    std::uint64_t tie = 0;
    friend bool operator<(const Waiting& a, const Waiting& b) {
      return a.ready != b.ready ? a.ready < b.ready : a.tie < b.tie;
    }
  };

  // A tie orders what waits since the same time: collectives last, then by source device, position in its
  // list and edge (ascending with crossing and reader). Its last bits say who waits: a channel, or channels +
  // collective. Each part has as many bits as the plan needs.
  struct TieLayout {
    std::uint32_t edge = 0, position = 0, device = 0, collective = 0, bits = 0;  // where each begins; all
    std::uint64_t who = 0;                                                       // mask
  };

  struct Gathering {
    Time ready = 0;
    std::uint32_t arrived = 0;
    std::uint32_t position = 0;  // in the list of its lowest device
  };

  struct Pair {  // two stages that edges join
    std::uint32_t from = 0, to = 0, edge = 0, edges = 0, channel = 0;
  };

  struct Endpoints {
    Time sent = 0, receive = 0;  // end of the send endpoint; cost of the receive endpoint
  };

  void make_units();
  void find_pairs();
  void make_channels();
  void add_channel(const Pair& pair, std::uint32_t rx, std::uint32_t ry);
  void add_hops(const Pair& pair, Channel& channel, const Route& route);
  void make_slots();
  void list_posts();
  void begin_channels();
  void make_tails();
  void lay_out_ties();
  bool times_fit(std::uint32_t bits) const;
  void spare_lone_links();

  template <bool kEndpoints, bool kPacked>
  bool run_all();
  template <bool kEndpoints, bool kPacked>
  void advance(std::uint32_t index);
  static void step_on(Unit& unit);
  bool asks_for_next(const Unit& unit);
  Time start_after_endpoints(const Unit& unit, std::uint32_t rank, std::uint32_t direction, Time lane);
  void run_send_endpoints(Unit& unit, std::uint32_t rank, std::uint32_t direction);
  template <bool kPacked>
  void run_tail(std::uint32_t index);
  void run_collective(std::uint32_t collective, Time ready);
  template <bool kEndpoints, bool kPacked>
  void post(Channel& channel);
  template <bool kEndpoints>
  void deliver(Channel& channel, Time ready);
  void turn_to_next(Channel& channel);
  template <class Key>
  void insert(std::vector<Key>& queue, Key key);
  template <bool kPacked>
  void make_room_to_wait();
  template <bool kPacked>
  void enqueue(Time ready, std::uint64_t tie);
  template <bool kPacked>
  bool take_first(Waiting& first);

  std::uint32_t row(std::uint32_t edge, std::uint32_t direction) const {
    return (2 * edge + direction) * (micro_batches_ + 1);
  }
  std::uint32_t micro_batch_of(const Unit& unit, std::uint32_t rank) const {
    return rank * input_->stages[unit.stage].replicas + unit.replica;
  }
  const Hop& hop_of(std::uint32_t edge, std::uint32_t direction, std::uint32_t micro_batch) const;

  // Memory, in step_memory.cc.
  struct Held;
  struct Freed {
    Time time = 0;
    std::int64_t bytes = 0;
  };
  struct Stream {  // what arrivals of one edge free, in order
    const Time* arrival = nullptr;
    std::int64_t bytes = 0;
    std::uint32_t at = 0;
  };
  struct Totals {  // of a stage, over its crossings and edges
    std::int64_t outputs = 0, kept_outputs = 0, gradients_in = 0, gradients_out = 0;
    std::int64_t slots_after[2] = {0, 0};  // forward receive slots, by what gives them back
    std::size_t output_streams = 0;        // the others are gradients'
  };
  void measure_memory(std::uint32_t index);
  Totals add_up(const Unit& unit);
  StepPeak peak_of_streams(const Unit& unit, const Totals& totals) const;
  StepPeak peak_in_general(const Unit& unit, const Totals& totals);

  const StepInput* input_ = nullptr;
  std::uint32_t micro_batches_ = 0;
  std::vector<Unit> units_;
  std::vector<Slot> slots_;               // two more than there are
  std::uint32_t never_ = 0, always_ = 0;  // slots that never end, that always have
  std::vector<Time> recompute_start_;     // by slot / 2
  // By row + micro-batch; the last of a row is never. Arrival times of messages.
  std::vector<Time> arrival_;
  std::vector<Endpoints> endpoints_;  // the same, where endpoints cost something
  std::vector<Pair> pairs_;
  std::vector<std::uint32_t> pair_edges_;                    // by pair
  std::vector<std::uint32_t> pair_of_edge_, pair_of_stage_;  // the latter while pairs are being found
  std::vector<std::uint32_t> edges_in_, edges_in_begin_;     // by stage; outgoing ones are consecutive
  std::vector<std::uint32_t> edges_out_begin_, crossings_begin_;
  std::vector<Channel> channels_;             // even: forward; odd: back between the same units
  std::vector<std::uint32_t> channel_index_;  // by pair's first + replica x · replicas y + replica y
  std::vector<Hop> hops_;
  std::vector<std::uint32_t> posts_;
  std::vector<Time> link_free_;
  std::vector<std::uint32_t> link_users_;
  std::vector<std::uint32_t> tail_, tail_begin_;  // collectives by unit, in order
  std::vector<Gathering> gatherings_;
  TieLayout ties_;
  // What waits, ascending, from queue_head_ to queue_end_; with room for all that ever will, so that nothing
  // need be asked when one is added. Time and tie in one number, or apart where they do not fit.
  std::vector<std::uint64_t> packed_queue_;
  std::vector<Waiting> queue_;
  std::size_t queue_head_ = 0, queue_end_ = 0;
  std::vector<std::uint32_t> runnable_;
  std::size_t unfinished_ = 0;
  Time iteration_ = 0;
  std::vector<Freed> freed_;  // ascending
  std::vector<Stream> streams_;
  std::vector<std::uint32_t> sorted_outputs_, sorted_gradients_;  // crossings, edges
  std::vector<StepPeak> peaks_;
};

}  // namespace espalier::internal
