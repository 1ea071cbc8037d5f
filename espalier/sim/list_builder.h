#pragma once

// How a ListStructure comes about, in four files: lists and messages (list_structure.cc), receive slots
// (list_slots.cc), collectives (list_collectives.cc), what memory does (list_changes.cc).

#include <map>
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
  ListBuilder(const StagedModel& model, const Schedule& schedule, RouteTable& routes, std::size_t link_count);
  ListStructure build();

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

  void number_lanes();
  void seat_stages();
  void fill_lists();
  std::uint32_t places_on(DeviceId device, StageId stage, std::uint32_t micro_batch) const;
  std::uint32_t place(std::uint32_t places, Place which) const { return places_[places + which]; }
  // What is saved is needed until here: to the end of B, or of W, or of I if W does not need it.
  std::uint32_t last_need(std::uint32_t places, bool for_input_only) const {
    const std::uint32_t weights = place(places, kWeightsPlace);
    return weights != kNone && !for_input_only ? weights : place(places, kBackwardPlace);
  }
  std::uint32_t micro_batches(StageId stage) const { return model_.stages[stage.index()].micro_batches; }
  Samples samples_of(const Message& message) const;
  template <class Visit>
  void for_readers(DeviceId device, const Crossing& crossing, const Samples& samples, Visit visit) const;
  void find_messages();
  void find_ends(BuiltMessage& message) const;
  void rank_messages();
  void find_slots();
  void post_backward();
  void lay_out_messages();
  void list_posts();
  void list_receives();
  void check_groups();
  void check_local_order();

  std::uint32_t route(DeviceId from, DeviceId to);
  void add_collectives();
  void add_all_reduce(ListCollective& collective, StageId stage);
  void add_tied_sum(ListCollective& collective, std::size_t tie);
  void add_leg(ListLeg leg, DeviceId from, DeviceId to);
  void find_lone_channels();

  void add_term(std::uint32_t slot, ListTerm::When when, std::uint32_t figure, std::int32_t times);
  std::uint32_t last_use(DeviceId device, const Crossing& crossing, const Samples& samples) const;
  bool gradients_come_last(const Crossing& crossing) const;
  void change_outputs();
  void change_gradients();
  void list_frees();
  void number_changes();

  const StagedModel& model_;
  const Schedule& schedule_;
  RouteTable& routes_;
  ListStructure out_;
  bool equal_counts_ = true;                 // all stages have as many micro-batches
  std::vector<std::uint32_t> lane_of_;       // by device
  std::vector<Seat> seats_;                  // by stage, replica, device
  std::vector<std::uint32_t> first_seat_;    // by stage, one more
  std::vector<std::uint32_t> seat_of_;       // by owner_begin_ + micro-batch: the first of its replica
  std::vector<std::uint32_t> share_rank_;    // likewise: place in the replica's share
  std::vector<std::uint32_t> owner_begin_;   // by stage
  std::vector<std::uint32_t> places_;        // slots; kPlaces for each seat and micro-batch
  std::vector<std::uint32_t> first_reader_;  // by crossing, one more
  std::vector<BuiltMessage> built_;          // by channel
  std::vector<std::uint32_t> by_rank_;       // built messages
  struct CollectiveSlots {
    ActionKind kind = ActionKind::kAllReduce;
    std::size_t subject = 0;  // stage or tie
    std::uint32_t first_slot = 0;
  };
  std::vector<CollectiveSlots> found_collectives_;  // in order of first_slot
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

}  // namespace espalier::internal
