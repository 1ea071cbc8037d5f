#pragma once

// From a schedule to a Trace: compile to a TaskGraph, run the engine, read the times back.

#include <cstdint>
#include <vector>

#include "espalier/cluster/cluster.h"
#include "espalier/schedule/schedule.h"
#include "espalier/sim/task_graph.h"
#include "espalier/trace/trace.h"

namespace espalier {

// The tasks of a schedule, and which task is what. Semantics (docs/semantics.md §1, §4; schedule.h says which
// messages there are, trace.h what is held from when to when):
//  - a device's compute actions are tasks of its in-order lane; receive endpoints stand before the first
//    action that consumes the message, send endpoints after the last action that produces it, where they cost
//    anything, by (Message, other device) among those of one action;
//  - a channel is an in-order lane too: its next message waits for the one before it to have left the wire;
//  - a message holds the contended links of its route for bytes / bottleneck bandwidth, then pays latency; it
//    waits for its producer (its send endpoint), for its channel, and for its receive to be posted: forward,
//    with n slots the i-th micro-batch of an edge waits for the slot that the (i-n)-th gave back; backward,
//    for the end of F of that micro-batch at the receiver; tokens likewise. A free token holds no link and
//    takes no time;
//  - first come, first served by (ready time, source device, position of the producing action in its list,
//    Message, destination device), sums among themselves by (ready time, lowest member, position there): they
//    give way to messages (task_graph.h);
//  - A and T go on beside their devices' lists: a task on links that waits for an empty task of each member,
//    its arrival, which waits for what stands before the sum in the member's list and for the sum before it
//    there. An update waits for the last sum that its stage is in.
struct CompiledSchedule {
  TaskGraph tasks;  // accounts: device · kMemoryCategories + category
  struct Source {   // of each task
    enum class Kind : std::uint8_t {
      kAction,           // F, B, I, W, R, U: `device`, `index` = position in its list
      kSendEndpoint,     // `device`, `index` = message
      kReceiveEndpoint,  // `device`, `index` = message
      kMessage,          // `device` = sender, `index` = message
      kCollective,       // `device` = lowest member, `index` = position in its list
      kMember,           // arrival at A or T in the list of `device`: `index` = position; takes no time
      kJoin,             // the latest of several ends, for memory: takes no time
    } kind = Kind::kAction;
    DeviceId device;
    std::uint32_t index = 0;
    TaskIndex collective = 0;  // kMember: the task that waits for it
  };
  std::vector<Source> sources;  // by task
  struct Sent {
    Message message;
    DeviceId from, to;
    std::uint32_t from_position, to_position;  // of the last action that produces and the first that consumes
    Bytes bytes;
  };
  std::vector<Sent> messages;  // by (channel, place in it)
};
CompiledSchedule compile(const StagedModel& model, const Cluster& cluster, const Schedule& schedule);

Trace simulate(const StagedModel& model, const Cluster& cluster, const Schedule& schedule);

// The short way: make_schedule, check nothing, simulate.
Trace simulate(const StagedModel& model, const Cluster& cluster);

}  // namespace espalier
