#pragma once

// How a ListStructure comes about, in six files: lists and messages (list_structure.cc; where micro-batches
// have one size list_messages.cc), receive slots (list_slots.cc), the short way of regular plans
// (list_regular.cc), collectives (list_collectives.cc), what memory does (list_changes.cc).
//
// A plan is *regular* if its micro-batches have one size, each replica is one device that hosts nothing else,
// and shares are dealt out in turn. Then what micro-batch j does is what all others do, and every table is
// written in place: some 20 ns a message and action. Where only the first holds and replicas are single
// devices, messages follow from the lists: each action is asked what it sends. Others go the long way, over
// the schedule's channels. All make the same values, by test.
//
// A builder is reused: its tables grow to the largest model.

#include <utility>
#include <vector>

#include "espalier/base/check.h"
#include "espalier/schedule/shares.h"
#include "espalier/sim/list_structure.h"

namespace espalier::internal {

// A message on its way into the structure.
struct BuiltMessage {
  Message message;
  DeviceId from, to;
  std::uint32_t channel = 0, producer = 0, consumer = 0, release = 0, rank = 0;
  std::uint32_t reader = 0;  // `message.reader` among all crossings' readers
  bool forward() const { return message.direction == Message::Direction::kForward; }
};

class ListBuilder {
 public:
  ListBuilder(RouteTable& routes, std::size_t devices, std::size_t link_count)
      : routes_(routes), device_count_(devices), link_count_(link_count) {}

  // Of a model whose orders are a rule.
  void build(const StagedModel& model, ListStructure& out);

  // Of any lists that keep the rules of check_schedule, apart from `deadlock`. O(actions + messages), with
  // the readers of a crossing on each device, and sorting of what one action sends.
  enum class Way : std::uint8_t { kShortest, kByLists, kByChannels };  // the second where it may be gone
  void build(const StagedModel& model, const std::vector<std::vector<Action>>& lists, ListStructure& out,
             Way way = Way::kShortest);

 private:
  static constexpr std::uint32_t kNone = 0xffffffff;

  // A replica of a stage on one of its devices.
  struct Seat {
    std::uint32_t stage = 0, replica = 0;  // replica: counted through the stages
    DeviceId device;
    std::uint32_t places = 0;  // of its first micro-batch in places_
  };
  enum Place : std::uint32_t { kForwardPlace, kRecomputePlace, kBackwardPlace, kWeightsPlace, kPlaces };

  struct Samples {  // [begin, end) / unit of the batch
    std::uint64_t begin = 0, end = 0, unit = 1;
  };

  // A micro-batch of a stage on a device.
  struct Use {
    const Crossing::Reader* reader = nullptr;
    std::uint32_t places = 0;  // in places_
  };

  void begin(const StagedModel& model, ListStructure& out);
  void finish();
  bool is_regular();
  void seat_stages();
  void begin_lane(DeviceId device);
  void add_entry(ActionKind kind, std::uint32_t stage, std::uint32_t work);
  void add_collective(ActionKind kind, std::size_t subject);
  void add_meeting(const Action& action, const Seat& seat, std::uint32_t place);
  void fill_lists(const std::vector<std::vector<Action>>& lists);
  void count_work();
  std::uint32_t places_on(DeviceId device, StageId stage, std::uint32_t micro_batch) const;
  std::uint32_t place(std::uint32_t places, Place which) const { return places_[places + which]; }
  // What is saved is needed until here: to the end of B, or of W, or of I if W does not need it.
  std::uint32_t last_need(std::uint32_t places, bool for_input_only) const {
    const std::uint32_t weights = place(places, kWeightsPlace);
    return weights != kNone && !for_input_only ? weights : place(places, kBackwardPlace);
  }
  std::uint32_t last_need(std::uint32_t places, const Crossing::Reader& reader) const {
    return reader.saved ? last_need(places, reader.for_input_only) : place(places, kForwardPlace);
  }
  std::uint32_t micro_batches(StageId stage) const { return model_->stages[stage.index()].micro_batches; }
  std::uint32_t new_channel(DeviceId from, DeviceId to);

  // The short way.
  struct RegularEdge {  // a reader of a crossing
    const Crossing::Reader* reader = nullptr;
    std::uint32_t crossing = 0, from = 0, to = 0, number = 0;  // number: among all crossings' readers
    std::uint32_t forward_place = 0, backward_place = 0;       // among what F, or B, sends
    std::uint32_t period = 1;                                  // micro-batches until the same replicas meet
    std::uint32_t first_hop = 0, hops = 0, first_hop_back = 0;
    bool returns = false;
  };
  void write_patterns();
  void write_regular_messages();
  void find_edges();
  void count_sends();
  void add_hops(RegularEdge& edge, std::uint32_t micro_batches);
  std::uint32_t channel_between(std::uint32_t from_seat, std::uint32_t to_seat);
  void write_messages(const RegularEdge& edge);
  void write_slots(const RegularEdge& edge);
  void list_regular_receives();
  void add_usual_changes();
  void free_saved_output(const RegularEdge& edge, std::uint32_t readers);

  // By the lists.
  bool has_one_size() const;  // and no replica has several devices
  void find_messages(const std::vector<std::vector<Action>>& lists);
  void list_reads();
  DeviceId device_of(StageId stage, std::uint32_t j) const;
  std::uint32_t place_of(StageId stage, std::uint32_t j, Place which) const;
  void send_forward(DeviceId device, std::uint32_t slot, const Action& action);
  void send_back(DeviceId device, std::uint32_t slot, const Action& action);
  void number_channels(DeviceId device, std::size_t first);
  void sort_by_channel();

  // The long way; from find_slots on the other one is the same.
  void write_all_messages(const std::vector<std::vector<Action>>& lists, Way way);
  Samples samples_of(const Message& message) const;
  template <class Visit>
  void for_readers(DeviceId device, const Crossing& crossing, const Samples& samples, Visit visit) const;
  void find_messages(const Schedule& schedule);
  void find_ends(BuiltMessage& message) const;
  void rank_messages();
  void find_slots();
  void lay_out_messages();
  void list_releases();
  void check_local_order();
  std::uint32_t last_use(DeviceId device, const Crossing& crossing, const Samples& samples) const;
  bool gradients_come_last(const Crossing& crossing) const;
  void change_outputs();
  void change_gradients();

  void list_posts();
  void list_receives();
  void list_initial();
  void list_frees();
  void number_changes();
  void add_term(std::uint32_t slot, ListTerm::When when, std::uint32_t figure, std::int32_t times);

  std::uint32_t route(DeviceId from, DeviceId to);
  void add_sums();
  void add_sums_of(std::uint32_t lane);
  void add_sum(std::uint32_t slot, std::uint32_t lane);
  void add_collectives();
  void add_all_reduce(ListCollective& collective, StageId stage);
  void add_tied_sum(ListCollective& collective, std::size_t tie);
  void add_leg(ListLeg leg, DeviceId from, DeviceId to);
  void find_lone_channels();

  RouteTable& routes_;
  const std::size_t device_count_, link_count_;
  const StagedModel* model_ = nullptr;
  ListStructure* out_ = nullptr;

  bool equal_counts_ = true;                 // all stages have as many micro-batches
  std::vector<std::uint32_t> lane_of_;       // by device
  std::vector<Seat> seats_;                  // by stage, replica, device
  std::vector<std::uint32_t> first_seat_;    // by stage, one more
  std::vector<std::uint32_t> seat_of_;       // by owner_begin_ + micro-batch: the first of its replica
  std::vector<std::uint32_t> share_rank_;    // likewise: place in the replica's share
  std::vector<std::uint32_t> owner_begin_;   // by stage
  std::vector<std::uint32_t> places_;        // slots; kPlaces for each seat and micro-batch
  std::vector<std::uint32_t> first_reader_;  // by crossing, one more
  struct RawChange {
    ActionKind kind = ActionKind::kUpdate;
    std::uint32_t stage = 0;
  };
  std::vector<RawChange> raw_changes_;  // by slot
  struct CollectiveSlots {
    ActionKind kind = ActionKind::kAllReduce;
    std::size_t subject = 0;  // stage, tie, or the work of a group
  };
  std::vector<CollectiveSlots> found_collectives_;  // in order of their first slots
  std::vector<std::uint32_t> collective_of_stage_, collective_of_tie_;
  std::vector<std::uint32_t> meeting_of_;  // by the group's first place in places_
  struct Member {
    std::uint32_t collective = 0, lane = 0, slot = 0;
  };
  std::vector<Member> members_;
  std::vector<std::uint32_t> sum_of_stage_;  // by stage: the last sum that it is in
  struct AwaitedSum {
    std::uint32_t sum = 0, update = 0;  // update: slot
  };
  std::vector<AwaitedSum> awaited_sums_;

  std::vector<std::uint32_t> seat_on_;             // regular; by device
  std::vector<std::uint32_t> place_at_;            // regular; by owner_begin_ + micro-batch: in places_
  std::vector<std::vector<Action>> ends_of_step_;  // by stage
  std::vector<RegularEdge> edges_;
  std::vector<std::uint32_t> forward_sends_, backward_sends_;  // by stage
  std::vector<std::uint32_t> hop_place_;                       // by hop: among those of its channel
  std::vector<std::uint32_t> channel_hops_;                    // by channel
  std::vector<std::uint32_t> channel_from_, channel_next_;     // by seat; by channel: the next from there
  std::vector<std::pair<std::uint32_t, ListUsual>> usual_;     // with its stage

  struct BuiltChannel {
    DeviceId from, to;
    std::uint32_t count = 0;
  };
  std::vector<BuiltChannel> built_channels_;  // ascending (from, to)
  std::vector<BuiltMessage> built_;           // by channel
  std::vector<std::uint32_t> by_rank_;        // built messages
  struct Read {
    std::uint32_t crossing = 0, reader = 0;  // reader: among all crossings' readers
  };
  std::vector<std::uint32_t> reads_begin_;  // by stage, one more
  std::vector<Read> reads_;
  std::vector<BuiltMessage> ranked_;       // by rank
  std::vector<std::uint32_t> channel_to_;  // by device: of the lane at hand
  std::vector<DeviceId> targets_;          // of the lane at hand
  std::vector<std::uint32_t> order_;       // for list_receives
  struct Release {
    std::uint32_t slot = 0, channel = 0;
  };
  std::vector<Release> releases_;
  struct LaneTerm {
    std::uint32_t lane = 0;
    ListTerm term;
  };
  std::vector<LaneTerm> initial_;
  struct SlotTerm {
    std::uint32_t slot = 0;
    ListTerm term;
  };
  std::vector<SlotTerm> slot_terms_;
  struct SlotFree {
    std::uint32_t slot = 0;
    ListFree free;
  };
  std::vector<SlotFree> slot_frees_;
  std::vector<std::uint32_t> terms_begin_, latest_, before_;
  std::vector<ListTerm> sorted_terms_;
  std::vector<std::uint32_t> link_users_;
};

// Calls visit(Use) for the micro-batches of stages on a device that read these samples of a crossing.
template <class Visit>
void ListBuilder::for_readers(DeviceId device, const Crossing& crossing, const Samples& samples,
                              Visit visit) const {
  for (const Crossing::Reader& reader : crossing.readers) {
    const std::uint64_t count = micro_batches(reader.stage);
    const bool same = samples.unit == count;  // as the samples are counted
    std::uint64_t k = same ? samples.begin : samples.begin * count / samples.unit;
    for (; k < count && k * samples.unit < samples.end * count; ++k) {
      if (!same && (k + 1) * samples.unit <= samples.begin * count) continue;
      const std::uint32_t places = places_on(device, reader.stage, narrow(k));
      if (places != kNone) visit(Use{&reader, places});
    }
  }
}

// Buckets: counts[i + 2] says how many there are at i; afterwards counts[i + 1] is where i begins, and moves
// to where it ends as its members are placed.
inline void begin_buckets(std::vector<std::uint32_t>& counts) {
  for (std::size_t i = 1; i < counts.size(); ++i) counts[i] += counts[i - 1];
}

}  // namespace espalier::internal
