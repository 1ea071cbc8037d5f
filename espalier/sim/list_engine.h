#pragma once

// One training step from a structure and its costs, for any schedule: stages that share a device, split
// backwards, recomputation, any order, unequal micro-batches, replicas, tensor-parallel groups, sums of
// gradients anywhere in a list, which go on beside it. The evaluator's inner loop; equal to compile,
// run_tasks and the memory of trace.h to the nanosecond and byte, by test.
//
// Everything is flat and reused: one engine serves one thread, for structures of any size in turn.

#include <cstdint>
#include <span>
#include <vector>

#include "espalier/sim/list_structure.h"
#include "espalier/sim/waiting_queue.h"

namespace espalier::internal {

struct ListPeak {  // the first of the largest samples of a lane's device, parameters and their like apart
  std::int64_t buffers = 0, activations = 0;
  friend bool operator==(const ListPeak&, const ListPeak&) = default;
};

class ListEngine {
 public:
  // False if the step deadlocks: some list waits forever. Then nothing below is of use. Refers to both until
  // it runs again.
  bool run(const ListStructure& structure, const ListCosts& costs);
  Time iteration() const { return iteration_; }
  std::span<const Time> ends() const { return {ends_.data(), structure_->entries.size()}; }  // by slot

  // By lane. After a run that was true.
  std::span<const ListPeak> measure_memory();

 private:
  static constexpr Time kNever = Duration::max().count();
  static constexpr std::uint32_t kNobody = 0xffffffff;

  struct Lane {
    Time free = 0;
    std::uint32_t slot = 0, end = 0;
    std::uint32_t next_sum = 0;  // that it will come to
  };
  struct Sum {  // on a lane
    Time arrival = 0;
    std::uint32_t waits = 1;  // its turn, and the lane's sum before it
  };

  // Messages go in order, the first may be waiting for links. `producer` is `never` while it does.
  struct Channel {
    std::uint32_t producer = 0, release = 0;  // of its first message
    std::uint32_t message = 0, to = 0;
    Time wire_free = 0;
    LinkIndex two_links[2] = {0, 0};  // the first two, or one twice
    const LinkIndex* links = nullptr;
  };

  struct Hop {
    Time hold = 0, latency = 0;
    Time send = 0, receive = 0;    // endpoints
    std::uint32_t link_count = 0;  // 0 if there is nothing to wait for
  };

  struct Interval {
    Time begin = 0, end = 0;
    friend bool operator<(const Interval& a, const Interval& b) { return a.begin < b.begin; }
  };

  struct Collective {
    Time hold = 0, latency = 0, ready = 0;
    std::uint32_t arrived = 0;
    // Of a sum that has begun: until `accounted` it is known when it stood still, `hold` is left to do.
    Time accounted = kNever;
    std::vector<Interval> messages;  // on its links, not accounted yet
  };

  struct SumLink {                // a link that sums use
    std::uint32_t sum = kNobody;  // that holds it
    std::vector<Interval> messages;
  };

  struct Waiting {  // for links
    Time ready = 0;
    std::uint64_t rank = 0;
    friend bool operator<(const Waiting& a, const Waiting& b) {
      return a.ready != b.ready ? a.ready < b.ready : a.rank < b.rank;
    }
  };

  void price_hops();
  void price_collectives();
  bool times_fit(std::uint32_t bits) const;
  void begin();
  void begin_sum_links();
  template <bool kEndpoints, bool kPacked>
  bool run_all();
  template <bool kEndpoints, bool kPacked>
  void advance(std::uint32_t index);
  template <bool kEndpoints, bool kPacked>
  void end_entry(std::uint32_t slot, Lane& lane, Time end);
  template <bool kEndpoints, bool kPacked>
  void meet(std::uint32_t index, Time time);
  template <bool kPacked>
  void arrive(std::uint32_t sum, Time time);
  template <bool kPacked>
  void look_at_sum(std::uint32_t index, Time time);
  template <bool kPacked>
  void begin_sums(Time time);
  template <bool kPacked>
  void end_sum(std::uint32_t index, Time left);
  void note_for_sums(const Channel& channel, std::uint32_t links, Interval held);
  std::span<const LinkIndex> links_of(std::uint32_t collective) const {
    const ListCollective& of = structure_->collectives[collective];
    return std::span(structure_->collective_links).subspan(of.first_link, of.links);
  }
  bool goes_on(Lane& lane);
  bool is_sum(const ListEntry& entry) const {
    return entry.work >= structure_->first_collective &&
           structure_->collectives[entry.work - structure_->first_collective].is_sum();
  }
  Time start_after_endpoints(std::uint32_t slot, Time lane);
  void run_send_endpoints(std::uint32_t slot, Lane& lane);
  template <bool kEndpoints, bool kPacked>
  void post(Channel& channel);
  void deliver(Channel& channel, Time ready);
  template <bool kPacked>
  void enqueue(Time ready, std::uint64_t rank);
  template <bool kPacked>
  bool take_first(Waiting& first);

  // Memory, in list_memory.cc.
  struct Change {
    std::int64_t start_activations = 0, end_activations = 0, end_buffers = 0;
  };
  struct Freed {
    Time time = 0;
    std::int64_t bytes = 0;
  };
  struct Usual {  // of a stage, by kinds of action
    std::int64_t forward_buffers = 0, backward_start = 0, backward_buffers = 0;
    std::int64_t backward_end = 0, last_end = 0;
  };
  struct HopFree {
    std::int64_t bytes = 0;
    bool ends_group = true;
  };
  struct Held;
  void price_usual();
  void price_changes();
  ListPeak peak_of(std::uint32_t lane);

  const ListStructure* structure_ = nullptr;
  const ListCosts* costs_ = nullptr;
  std::vector<Time> durations_;       // by work, collectives' zeros included
  std::vector<Time> ends_, ready_;    // by slot; ends_ has `never` and `always` as well
  std::vector<std::uint32_t> waits_;  // by slot
  std::vector<Time> arrival_, sent_;  // by rank
  std::vector<Lane> lanes_;
  std::vector<Channel> channels_;
  std::vector<Hop> hops_;
  std::vector<Collective> collectives_;
  std::vector<Sum> sums_;
  std::vector<std::uint32_t> due_;  // sums without links, whose members are all there
  std::vector<Time> link_free_;     // of messages
  std::vector<SumLink> sum_links_;
  std::vector<std::uint32_t> sum_link_of_;    // by link: among sum_links_, or kNobody
  std::vector<std::uint32_t> waiting_sums_;   // for links that other sums hold, by ready time
  WaitingQueue<std::uint64_t> packed_queue_;  // time and rank in one number,
  WaitingQueue<Waiting> queue_;               // or apart where they do not fit
  std::uint32_t rank_bits_ = 1;
  std::vector<std::uint32_t> runnable_;
  std::size_t unfinished_ = 0;
  Time iteration_ = 0;
  std::vector<Usual> usual_;        // by stage
  std::vector<HopFree> hop_frees_;  // by hop
  std::vector<Change> changes_;
  std::vector<Freed> freed_;
  std::vector<ListPeak> peaks_;
};

}  // namespace espalier::internal
