#pragma once

// From a schedule to a Trace: compile to a TaskGraph, run the engine, read the times back.

#include <cstdint>
#include <vector>

#include "espalier/cluster/cluster.h"
#include "espalier/schedule/schedule.h"
#include "espalier/sim/task_graph.h"
#include "espalier/trace/trace.h"

namespace espalier {

// The tasks of a schedule, and which task is what. Semantics (docs/semantics.md §1, §4):
//  - a device's compute actions are tasks of its in-order lane; receive endpoints stand before the action
//  that consumes the
//    message, send endpoints after the action that produces it, where they cost anything;
//  - a message is a task that holds the contended links of its route for bytes / bottleneck bandwidth, then
//  pays latency; it
//    waits for its producer (its send endpoint), for the message before it in its channel to have left the
//    wire, and for its receive to be posted: forward, the k-th message of an edge waits for the slot that the
//    (k-w-1)-th of that consumer replica gave back (at the end of its B or W if the tensor is saved there,
//    else of its F); backward, for the end of F of that micro-batch at the receiver; tokens likewise;
//  - messages within one device take no time and hold nothing;
//  - first come, first served: priority = (source device, position of the producing action in its list,
//  crossing);
//  - A and T occupy their devices from the moment all members arrived to the end of the collective.
struct CompiledSchedule {
  TaskGraph tasks;
  struct Source {  // of each task
    SpanKind kind = SpanKind::kAction;
    DeviceId device;
    std::uint32_t index = 0;  // position in the device's list; for messages: in `messages`
  };
  std::vector<Source> sources;
};
CompiledSchedule compile(const StagedModel& model, const Cluster& cluster, const Schedule& schedule);

Trace simulate(const StagedModel& model, const Cluster& cluster, const Schedule& schedule);

// The short way: make_schedule, check nothing, simulate.
Trace simulate(const StagedModel& model, const Cluster& cluster);

}  // namespace espalier
