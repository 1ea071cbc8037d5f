#pragma once

// The ordered actions of each device: what the simulator times and the runtime executes. Nothing here knows
// whether it came from a PipelinePlan or a Placement.
//
// A device has one in-order list of compute actions, and one in-order channel per peer and direction. A send
// is posted when its producer ends, a receive as soon as a slot is free; only compute waits for tensors. Sums
// of gradients (A, T) begin where they stand in the list and go on beside it, one after the other; an update
// waits for those of its stage (docs/semantics.md, time).

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/base/ids.h"
#include "espalier/cluster/cluster.h"
#include "espalier/plan/action.h"
#include "espalier/plan/staged_model.h"

namespace espalier {

// One piece of a crossing on its way. Samples are numbered within the batch.
struct Message {
  enum class Direction : std::uint8_t { kForward, kBackward } direction = Direction::kForward;
  std::uint32_t crossing = 0;              // index into StagedModel::crossings
  StageId reader;                          // the reading stage; of several on the device, the lowest
  std::uint32_t producer_micro_batch = 0;  // of the crossing's `from` stage
  std::uint32_t consumer_micro_batch = 0;  // of the reader
  friend auto operator<=>(const Message&, const Message&) = default;
};

struct Channel {
  DeviceId from;
  DeviceId to;
  std::vector<Message> messages;  // in order
  friend bool operator==(const Channel&, const Channel&) = default;
};

struct Schedule {
  std::vector<std::vector<Action>> devices;  // by DeviceId: compute actions in order
  std::vector<Channel> channels;             // ascending (from, to), none empty
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

// What a stage does besides F and B. These decide which actions a schedule must have.
bool recomputes(const StagedStage& stage);  // R before each B: recomputing takes time or memory
bool reduces(const StagedStage& stage);     // A: several replicas and gradients to reduce
bool updates(const StagedStage& stage);     // U: it has gradients, or its update takes time
bool can_split(const StagedStage& stage);   // I and W in place of B: it has weights

// The schedule that the model's orders stand for, completed with channels. By a rule:
//  GPipe  all forwards, then all backwards in micro-batch order;
//  1F1B   in-flight-limit forwards, then k backwards and k forwards in turn, then the rest; on a DAG of
//  stages
//         each by its own limit and k, backwards as early as the limits allow (GraphPipe §5;
//         docs/semantics.md, in-flight). Each replica does so for its own share.
//  split  I in place of B of the stages with weights, as soon as it is ready, else a forward while the limit
//         allows (GPipe: before any I), else W; a limit counts micro-batches to the end of W.
// A device with several stages merges their lists by a unit-time simulation: of the actions that are ready,
// backwards first, then forwards, then W; of each, earlier samples, then higher stages. Split orders come
// from it for all devices. Where limits grow along an edge so that these orders would wait in a circle, each
// replica instead takes a backward as soon as one is ready, else a forward while its limit allows. A stands
// right behind the last backward of its stage, or behind the A of a higher stage on its device; at the end of
// each device's list T of its ties, then U of its stages. R stands before each B or I
// of a stage that recomputes. Micro-batches of unequal sizes need limits that cover one micro-batch of the
// larger; with smaller ones the result deadlocks, and check_schedule says so.
//
// Lists are completed with micro-batches and with what they leave out (orders.h). Any lists become a
// schedule: of an action too many the micro-batch does not exist, and check_schedule says so. O(actions ·
// log), and for the unit-time simulation O(clocks · (replicas + readers)).
Schedule make_schedule(const StagedModel& model, std::size_t devices);

// The lists that stand for this schedule: make_schedule makes the same of them, if check_schedule accepts it
// (its channels then follow from its lists). What make_schedule adds by itself is left out.
OrderLists lists_of(const StagedModel& model, const Schedule& schedule);

// Of the lists; channels follow from them.
std::uint64_t schedule_hash(const Schedule& schedule);

// Channels for given compute orders: messages in the order in which their producers run, by Message order
// within an action.
//
// A crossing travels in pieces, each the samples that a producer's and a reader's micro-batch share, once per
// piece and destination device; on one device there is no message. `reader` is the lowest stage on the
// destination that reads the piece; the others there use the same message. Gradients (where the reader's
// `gradient` is not 0) and returning tokens travel back from each such device, after the last reader's B (or
// I) there. In a tensor-parallel group the i-th device talks to the i-th, modulo the other group's size.
Schedule with_channels(const StagedModel& model, std::vector<std::vector<Action>> devices);

// A or T: who takes part, and what it costs.
//  A  all devices of the stage's replicas; ring all-reduce (all_reduce_cost) of `reduced` among the devices
//     of equal rank in their groups, the ranks side by side.
//  T  all devices of the tie's stages; the first device of each other stage sends its sum to the first device
//     of the lowest, one after the other, which sends the total to each other member, one after the other;
//     the largest latency once each way. Who receives or sends one after the other pays that endpoint as
//     often, the others theirs once. A device with all copies adds them up by itself: nothing is sent to it,
//     but it waits for the others, a latency each way.
struct Collective {
  std::vector<DeviceId> members;  // ascending
  Bytes bytes;
  Duration hold;                 // all links are held this long
  Duration latency;              // with the endpoints
  std::vector<LinkIndex> links;  // ascending
  friend bool operator==(const Collective&, const Collective&) = default;
};
Collective collective_of(const StagedModel& model, const Cluster& cluster, const Action& action);

// Rules; each violation is one line that begins with the rule's name:
//   complete   every stage and micro-batch has its F once and its B once, or I and W once each if the stage
//   has
//              weights; R once if the stage recomputes; A once if it reduces; T once per tie; U once if it
//              updates; nothing else
//   place      each action stands on all devices of its replica (A, U: of all replicas; T: of all its stages)
//              and no others
//   order      F, then R, then B or I, then W of a micro-batch; F's ascend; B's (I's) ascend; R's and W's
//              ascend; A, T, U after the stage's last B or W, in that order, anywhere
//   in-flight  between F's start and B's (W's) end a replica never holds more than its limit
//   messages   every crossing piece travels once per destination device and direction, on the channel of its
//              two devices; channels ascend, none is empty, none leads to its own device
//   channel    messages stand in the order in which their producers run, by Message order within an action
//   deadlock   compute orders ∪ orders of sums ∪ channel orders ∪ data edges ∪ slot edges have no cycle; the
//              line shows the cycle of actions
// Each rule is checked where those before it hold: complete, then place, then order and in-flight, and
// messages, then channel, then deadlock.
std::vector<std::string> check_schedule(const StagedModel& model, const Schedule& schedule);

// "dev0  F0 F1 B0 …", one line per device that has actions; on a device with several stages "img:F0"; names
// from the cluster. Channels are derived, so they are not printed; parse_schedule makes them with
// with_channels.
std::string print_schedule(const StagedModel& model, const Cluster& cluster, const Schedule& schedule);
Schedule parse_schedule(std::string_view text, const StagedModel& model, const Cluster& cluster);

}  // namespace espalier
