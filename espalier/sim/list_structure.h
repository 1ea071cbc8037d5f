#pragma once

// One training step with its order but without its figures: what the list engine runs (list_engine.h), and
// what it keeps while a planner changes times and sizes.
//
// Every device that has actions is a lane: a list of entries. A slot is an entry's number, counted through
// all lanes, devices ascending; it stands for the moment at which that entry ends. What a message waits for
// is at most two slots, because the order of a list turns the latest of several on one device into one:
//
//     lane 0   F0 F1 B0 F2 B1 B2          slots 0 … 5
//     lane 1   F0 B0 F1 B1 F2 B2          slots 6 … 11
//     channel 0 → 1, in order             producer  release  consumer
//       F0's tensor                          0        -         6
//       F1's, second receive slot            1        -         8
//       F2's, the slot of F0's               3        7        10      7 = the end of B0, which kept it
//
// Times and bytes come later, from ListCosts: an entry has the number of its duration and the number of its
// change of memory; such a change is a sum of a few figures, the same for most micro-batches of a stage.
//
// The rules (who sends what to whom, which slot a receive waits for, what is held from when to when) are
// those of schedule.h and trace.h. compile (simulate.h) states them a second time and is what tests compare.

#include <array>
#include <cstdint>
#include <vector>

#include "espalier/cluster/cluster.h"
#include "espalier/schedule/schedule.h"
#include "espalier/sim/route_table.h"

namespace espalier::internal {

using Time = std::int64_t;  // nanoseconds; bytes are plain integers here as well

// Where the figures of a step stand in ListCosts: those of stages, then outputs by crossing, then bytes and
// gradient by reader (crossings' readers one after the other), then ties.
struct ListLayout {
  enum Figure : std::uint32_t {  // of a stage, on each of its devices
    kSaved,
    kRecomputed,
    kBetweenHalves,
    kForwardWorkspace,
    kBackwardWorkspace,
    kBuffers,
    kReduced,
    kSavedForInput,       // of kSaved: what only I needs
    kRecomputedForInput,  // of kRecomputed
    kUpdateWorkspace,
    kReduceScratch,  // all_reduce_scratch
    kFigures
  };
  enum Work : std::uint32_t { kUpdateWork = 5, kWorks = 6 };  // F, B, I, W, R as in ActionKind, then U

  std::uint32_t stages = 0, crossings = 0, readers = 0, ties = 0, replicas = 0;

  std::uint32_t of_stage(std::size_t stage, Figure figure) const { return narrow(stage * kFigures + figure); }
  std::uint32_t output(std::size_t crossing) const { return narrow(stages * kFigures + crossing); }
  std::uint32_t bytes(std::size_t reader) const { return output(crossings) + narrow(2 * reader); }
  std::uint32_t gradient(std::size_t reader) const { return bytes(reader) + 1; }
  std::uint32_t tie(std::size_t tie) const { return narrow(bytes(readers) + tie); }
  std::uint32_t size() const { return tie(ties); }
  // A duration's number: `replica` counts through the stages. Collectives' are behind all of them.
  static std::uint32_t work(std::size_t replica, ActionKind kind) {
    const auto of =
        kind == ActionKind::kUpdate ? std::uint32_t{kUpdateWork} : static_cast<std::uint32_t>(kind);
    return narrow(replica * kWorks) + of;
  }
  friend bool operator==(const ListLayout&, const ListLayout&) = default;
};

// The figures of a step, in the places that a layout says.
struct ListCosts {
  std::vector<Time> durations;
  std::vector<std::int64_t> bytes;
};
ListLayout layout_of(const StagedModel& model);
std::array<Bytes, ListLayout::kFigures> figures_of(const StageMemory& memory, Bytes reduced,
                                                   std::size_t replicas);
std::array<Duration, ListLayout::kWorks> works_of(const StageTimes& times);
ListCosts costs_of(const StagedModel& model);

struct ListEntry {
  std::uint32_t work = 0;    // its duration; from first_collective on it is one of `collectives`
  std::uint32_t change = 0;  // of memory
};

struct ListMessage {
  std::uint32_t producer = 0;  // slot after which it may go
  std::uint32_t release = 0;   // slot after which its receive is posted, or `always`
  std::uint32_t consumer = 0;  // slot that waits for it
  std::uint32_t hop = 0;
  std::uint32_t rank = 0;  // who goes first of those that are ready at one time
};

struct ListChannel {
  std::uint32_t first = 0;  // in `messages`; the one behind its last never goes
  std::uint32_t count = 0;
  std::uint32_t to = 0;     // lane
  std::uint32_t route = 0;  // in `routes`
  bool alone = false;       // nobody else uses its links
};

// What the messages of one tensor need on one channel.
struct ListHop {
  static constexpr std::uint32_t kNothing = 0xffffffff;
  std::uint32_t channel = 0;
  std::uint32_t bytes = 0;  // its figure
  std::uint32_t count = 0;  // messages
  bool free = false;        // a token without time or links
  // What goes at the sender when a message has arrived, and with it those before it that the same entry sends
  // and that do not end a group; but not before that entry has ended. A figure.
  bool ends_group = true;
  std::uint32_t frees = kNothing;
};
struct ListSend {  // a message, by rank
  std::uint32_t channel = 0, hop = 0;
};

// An all-reduce, a tied sum, or an action of a tensor-parallel group, whose devices start and end it
// together. The first two, sums, go on beside the lists of their members.
struct ListCollective {
  static constexpr std::uint32_t kNoAction = 0xffffffff;
  std::uint32_t action = kNoAction;             // of a group: the work whose duration it has; then no bytes
  std::uint32_t bytes = 0;                      // its figure
  std::uint32_t first_leg = 0, legs = 0;        // in `legs`
  std::uint32_t first_member = 0, members = 0;  // in `members`: lanes; of a sum: in `sums`
  std::uint32_t first_link = 0, links = 0;      // in `collective_links`
  std::uint32_t rank = 0;
  bool is_sum() const { return action == kNoAction; }
};
// A sum on one lane. It arrives once its turn has come and the lane's sum before it is over.
struct ListSum {
  std::uint32_t slot = 0, lane = 0, collective = 0;
  std::uint32_t figure = 0;  // what it needs of its own, from its arrival to its end: so often this figure
  std::int32_t times = 1;
  std::uint32_t first_update = 0, updates = 0;  // in `sum_updates`: slots that wait for its end
};
struct ListLeg {  // a route that a collective uses
  std::uint32_t route = 0;
  // kArrives, kLeaves: a latency and no bytes, to the device that adds up and back.
  enum class Kind : std::uint8_t { kRing, kGather, kReturn, kArrives, kLeaves } kind = Kind::kRing;
  std::uint32_t ring = 0, ring_size = 0;
};

// A change of memory: its kind of action's own and the usual ones of its stage (see list_changes.cc), and
// `terms` more.
struct ListChange {
  std::uint32_t stage = 0;
  ActionKind kind = ActionKind::kUpdate;
  std::uint32_t first_term = 0, terms = 0;
};
struct ListTerm {
  enum class When : std::uint8_t { kStartActivations, kEndActivations, kEndBuffers } when = When::kEndBuffers;
  std::uint32_t figure = 0;
  std::int32_t times = 0;
  friend bool operator==(const ListTerm&, const ListTerm&) = default;
};

// What all actions of a stage of some kinds have beside their own.
struct ListUsual {
  enum class At : std::uint8_t { kForward, kBackward, kLast } at = At::kForward;  // F; B and I; B and W
  ListTerm term;
};

// Bytes that go when messages have arrived, but not before the entry has ended that this belongs to.
struct ListFree {
  std::uint32_t figure = 0;
  std::uint32_t first = 0, count = 0;  // ranks of the messages
};

struct ListStructure {
  ListLayout layout;
  bool endpoints = false;                 // some message takes compute time
  bool possible = true;                   // false: some action waits forever, whatever the figures
  std::uint32_t first_collective = 0;     // work
  std::vector<std::uint32_t> work_count;  // by work: entries
  std::size_t link_count = 0;

  // By lane.
  std::vector<DeviceId> devices;
  std::vector<std::uint32_t> lane_begin;  // slots; one more than lanes

  // By slot.
  std::vector<ListEntry> entries;
  std::vector<std::uint32_t> waits;  // messages, a sum before an update, and its turn
  std::vector<std::uint32_t> posts_begin, sends_begin, receives_begin, frees_begin;  // one more than slots
  std::uint32_t never() const { return narrow(entries.size()); }
  std::uint32_t always() const { return narrow(entries.size()) + 1; }

  std::vector<std::uint32_t> posts;  // channels whose next receive may be posted when a slot has ended
  std::vector<std::uint32_t>
      receives;  // ranks of messages for a slot, by (Message, sender); with endpoints only
  std::vector<ListFree> frees;

  std::vector<ListChannel> channels;
  std::vector<ListHop> hops;
  std::vector<ListMessage> messages;  // by channel, with one that never goes after each
  std::vector<ListSend> sends;        // by rank: those that a slot sends follow one another
  std::vector<const Route*> routes;   // the RouteTable's

  std::vector<ListCollective> collectives;  // by work; ranks follow those of messages
  std::vector<ListLeg> legs;
  std::vector<std::uint32_t> members;
  std::vector<ListSum> sums;              // by slot
  std::vector<std::uint32_t> sums_begin;  // by lane, one more
  std::vector<std::uint32_t> sum_updates;
  std::uint32_t sum_count = 0;  // collectives that are sums
  std::vector<LinkIndex> collective_links;

  std::vector<ListChange> changes;
  std::vector<ListTerm> terms;
  std::vector<ListUsual> usual;
  std::vector<std::uint32_t> usual_begin;    // by stage, one more
  bool hops_free = false;                    // some hop frees something
  std::vector<std::uint32_t> initial_begin;  // by lane, one more: held from the start, in buffers
  std::vector<ListTerm> initial;
  std::vector<std::uint32_t> crossings_begin;  // by stage, one more: its outputs
};

// The structure of a schedule, which must keep the rules of check_schedule, apart from `deadlock`. Whoever
// makes many has a ListBuilder (list_builder.h).
ListStructure make_list_structure(const StagedModel& model, const Schedule& schedule, RouteTable& routes,
                                  std::size_t link_count);

std::size_t bytes_of(const ListStructure& structure);  // of memory, about

}  // namespace espalier::internal
