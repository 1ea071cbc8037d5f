#pragma once

// What happened, or would happen: timed spans on devices and links, and memory over time. The simulator and
// the real run both return a Trace, so every comparison, picture and report works on either.

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/base/ids.h"
#include "espalier/base/units.h"
#include "espalier/schedule/schedule.h"

namespace espalier {

enum class Stream : std::uint8_t { kCompute, kSend, kReceive, kCollective };

enum class SpanKind : std::uint8_t {
  kAction,           // compute: `action`
  kTransfer,         // kSend: from the moment the first link is held to arrival (simulated) or from post to
                     // completion (measured)
  kReceiveWait,      // kReceive, measured: from the posted receive to its completion
  kSendEndpoint,     // compute time that a message takes from its sender
  kReceiveEndpoint,  // … and from its receiver
  kCollective,       // all-reduce or tied sum on the wire
};

struct Span {
  DeviceId device;  // whose track it is on; a transfer: the sender
  Stream stream = Stream::kCompute;
  SpanKind kind = SpanKind::kAction;
  Action action;  // kAction, kCollective; for messages: the action that sends (F or B) or waits
  std::optional<Message> message;  // transfers, endpoints, receive waits
  std::optional<DeviceId> peer;
  Bytes bytes;
  Duration start;
  Duration end;
  std::optional<Duration> posted;  // transfers, collectives: when ready; the wait for links is start - posted
  friend bool operator==(const Span&, const Span&) = default;
};

enum class MemoryCategory : std::uint8_t { kParameters, kGradients, kOptimizer, kBuffers, kActivations };
constexpr std::size_t kMemoryCategories = 5;
std::string_view to_text(MemoryCategory category);  // "parameters"; kBuffers: model buffers, receive slots,
                                                    // buffers of collectives; kActivations: with workspace

struct MemoryByCategory {
  Bytes bytes[kMemoryCategories];
  Bytes total() const;
  friend bool operator==(const MemoryByCategory&, const MemoryByCategory&) = default;
};

// Memory from `time` on, until the device's next sample.
struct MemorySample {
  DeviceId device;
  Duration time;
  MemoryByCategory held;
  friend bool operator==(const MemorySample&, const MemorySample&) = default;
};

struct Trace {
  enum class Origin : std::uint8_t { kSimulated, kMeasured } origin = Origin::kSimulated;
  std::vector<std::string> devices;  // names, by DeviceId
  std::vector<std::string> stages;   // names, by StageId
  std::vector<std::string> tensors;  // names, by crossing
  std::vector<Bytes> capacity;       // memory, by DeviceId
  std::vector<Span> spans;           // ascending (device, stream, start, end)
  std::vector<MemorySample> memory;  // ascending (device, time), one per instant
  Duration iteration;                // barrier to barrier: last update done everywhere
  std::vector<std::string> notes;    // "clock offset host1 12us ±3us"
  friend bool operator==(const Trace&, const Trace&) = default;
};

// "F0 img", "A img", "T0": the action of a span with its stage's name.
std::string span_name(const Trace& trace, const Span& span);

// Peak of each device: the sample with the largest total, the first of equals.
std::vector<MemoryByCategory> peak_memory(const Trace& trace);
// Time each device computes (actions and endpoints; not collectives), and the idle share of all devices that
// have actions.
std::vector<Duration> busy_time(const Trace& trace);
double bubble_ratio(const Trace& trace);  // 1 - Σ busy / (devices with actions × iteration)

// Rules; each violation is one line that begins with the rule's name. `simulated` traces must obey all of
// them exactly, `measured` ones those marked c (causality, no earlier than clocks allow).
//   sorted      c  spans and samples in their order, ends not before starts, none beyond the iteration
//   actions     c  exactly the schedule's actions on their devices, in the schedule's order, not overlapping;
//                  simulated: on all devices of a tensor-parallel group at the same time
//   duration       an action takes its staged time, an endpoint what the route says
//   messages    c  every message of the schedule once; it starts after its producer ends, its consumer after
//                  it arrived
//   channel     c  a channel's transfers in order; simulated: the next is not on the wire before the last
//                  left it
//   links          a link with contention carries one transfer or collective at a time, first come, first
//                  served; each takes bytes / bottleneck, then latency
//   collective  c  starts when all members arrived, at the same time on all of them (measured: a member's own
//                  arrival is not before what stands before the sum has ended; ends after all members
//                  arrived)
//   eager          nothing waits without a cause: each start equals the latest of what it waits for
//   slots       c  a message does not arrive before its slot is free
//   memory         samples equal what is held, by the text below, recomputed here
//   iteration   c  the last end
//
// Spans of a simulated trace, as the simulator writes and this checks them:
//  - F, B, I, W, R, U: one kAction span on each device of the replica, stream kCompute.
//  - Endpoints: stream kCompute, only where they cost time; receive endpoints before the first action of the
//    device that consumes the message, send endpoints after the last action that produces it, in any order
//    among those of one action. `action` is that action, `peer` the other device.
//  - A message: one kTransfer span on the sender, kSend. posted = the latest of its producer's (its send
//    endpoint's) end, the moment the channel's message before it left the wire, and the moment its receive
//    was posted; start = the first link held; end = start + hold + latency. `action`: the producing one, of
//    several the last in the device's list. Tokens under TokenRule::kFree: no time, no endpoints.
//  - A and T: one kCollective span on each member, stream kCollective; kCompute goes on. Times and members
//    are those of collective_of (schedule.h). A member arrives when what stands before the sum in its list
//    has ended and its sum before that is over. posted = the last arrival, start = the first link held,
//    end = start + hold + latency. An update waits for the end of the last sum before it that its stage is
//    in. bytes: reduced, or the tie's.
//
// Spans of a measured trace: kAction and kCollective as above, where a collective's start is the member's own
// arrival; per message one kTransfer on the sender (kSend, from post to completion) and one kReceiveWait on
// the receiver (kReceive, `peer` the sender, `action` the first that consumes it); nothing else. Times of
// different devices are compared with a slack of twice the largest ± in notes such as "clock offset host1
// 12us ±3us". Which receive buffers there are is the same, so a receive does not complete before its slot is
// free.
//
// What a device holds (simulated traces). Every interval is half open; a sample says what is held after all
// changes of its instant. Samples stand where that changes, and at 0. Where the two halves of a backward are
// split, "B's start" is I's start and "B's end" is W's end, except where I is named. Zero bytes hold nothing.
//   kParameters, kGradients, kOptimizer: of all stages on the device, always.
//   kBuffers:
//    - buffers of all stages on the device, always;
//    - forward receive slots. An edge is (crossing, `reader` of the messages, receiving device). Its
//      micro-batches are those of the reader that get a message there, ascending; each takes one slot of
//      (its messages) × Reader::bytes. With n slots of the reader (in_flight + 1 by default), the i-th of
//      them (from 0) takes its slot at 0 if i < n, else at the release of the (i-n)-th, and keeps it to its
//      own release: the latest end of F, or of B where the tensor is `saved` (of I if `for_input_only`), over
//      the stages on that device that read these samples of the crossing. (A message's receive is posted when
//      its slot is taken.)
//    - gradient receive buffers: Reader::gradient of each backward message, from the end of the receiving
//      action's F to its B's end (I's end). (Its receive is posted when it begins.)
//    - what A and T need of their own, from the device's arrival to their end: A of n replicas `reduced` and
//      twice the n-th part of it, rounded up; T three times the tie's bytes on the first device of the lowest
//      stage, once on the others.
//   kActivations:
//    - `saved`, from F's start to B's end; `recomputed`, from R's start to B's end; what of them is
//      `…_for_input`, to the end of I; `between_halves`, from I's end to W's end;
//    - a crossing's `output`, from the producer's F's start to the latest of: that F's end; the end of each
//      of its transfers from this device; B's end if saved_by_producer (I's if for_input_only); for each
//      stage on this device that reads it, the end of F there, or of B where it is `saved` (of I if
//      for_input_only);
//    - Reader::gradient of each backward message on the device that sends it, from the start of B of its
//      reader (of several readers on that device the first) to the end of the transfer;
//    - forward_workspace during F and R, backward_workspace during B, I and W, update_workspace during U.
//   Messages within one device hold nothing else. All devices of a tensor-parallel replica hold the same.
std::vector<std::string> check_trace(const StagedModel& model, const Cluster& cluster,
                                     const Schedule& schedule, const Trace& trace);

// Pairs of equal actions in two traces, and how the second differs: a predicted and a measured one.
struct ActionDifference {
  DeviceId device;
  Action action;
  Duration start_a, end_a, start_b, end_b;
};
struct TraceDifference {
  Duration iteration_a, iteration_b;
  std::vector<ActionDifference> actions;  // in a's order
  std::vector<std::string> only_in_a, only_in_b;
};
TraceDifference diff_traces(const Trace& a, const Trace& b);

// Chrome trace JSON for Perfetto: pid = device, tid = stream; no two slices of a track overlap
// (docs/formats.md).
std::string chrome_trace(const Trace& trace);

// Sums over a trace stay below 2^62: the bytes of each sample, and the lengths of all spans. The readers
// throw InputError otherwise.
void require_sums_fit(const Trace& trace);

// One line per span for tests: "dev0 compute F0 img 0ns-2ms".
std::string print_trace(const Trace& trace);
Trace parse_trace(std::string_view text);

}  // namespace espalier
