#pragma once

// A placement's own timeline (placement/engine.h), operator by operator: as a Chrome trace that can be zoomed
// to the single operator, as one SVG, and as text.
//
//   gpu:0   ▇▇▇ encoder.0 ▇▇▇▇▇▇ encoder.1 ▇▇     ▇▇ encoder.0 (backward) ▇▇    100 ns of idleness are a gap
//   gpu:1              ▇▇▇▇▇ decoder.0 ▇▇▇▇▇▇▇▇▇▇▇▇                             in the trace, in the SVG
//     └ gpu:0 → gpu:1  ─  ─ ─                                                   only from half a pixel on
//
// In the SVG adjacent operators of one module and direction are one box, and where boxes would be thinner
// than a pixel they are one box of what takes most of its time. So a file's size grows with pixels and
// devices, not with operators.

#include <span>
#include <string>
#include <vector>

#include "espalier/placement/held_over_time.h"
#include "espalier/report/gantt.h"

namespace espalier {

// Refers to what it is given; the timeline is one of the instance, of which the graph is, and of these rules
// and this assignment.
struct PlacementPicture {
  const Graph& graph;
  const Cluster& cluster;
  const placement::Instance& instance;
  const placement::Rules& rules;
  std::span<const DeviceId> assignment;
  const placement::Timeline& timeline;
  std::string title;  // "m-etf, plan.json"
};

// For Perfetto and chrome://tracing, like trace/trace.h: a process for each device, with operators by name
// (module, type, direction), a thread for each way on which it sends (values by name, bytes, how long the
// receiver stood idle for it; messages that overlap take further threads), and a counter of the memory held.
// Arrows (flow events, one id a message) lead from the operator that sends to the message, and on to the
// first operator that reads it there. O(tasks + reads + messages · ways at once).
std::string chrome_placement(const PlacementPicture& picture);

// Each device with its operators, below it what it sends, then memory over time with each device's limit. At
// most 200 messages have an arrow: those on the critical path, then those that a device waited for longest
// (placement/message_uses.h).
// `width` is that of the drawing's own units.
std::string svg_placement(const PlacementPicture& picture, int width = 1200);

// As text, one lane for each device:
//
//           0         10        20        30 ms
//   gpu:0   FFFFFFFfFFF·····BBBBBBBBBBBBbBBBUU   88.1 % busy
//                 --====--      --====            31.0 % sends
//           ▁▂▃▄▅▆▇█████▇▇▇▇▆▆▅▅▄▄▃▃▂▂▁▁▁▁▁▁▁▁  peak 9.1 GiB
//
// The letter is what takes most of the column's time, a small one where less than half of the column is busy
// (none below a tenth); a dot where the device waits for something to do, nothing after its last task. Below
// it, how much of the column messages of the device are on their way, however many at once. `transfers` is
// not asked. Of more than 32 devices the busiest are shown. No line is wider than options.width but for its
// least, 40, and names. O(tasks + devices · messages + columns · devices), memory over time apart.
std::string text_placement(const PlacementPicture& picture, const GanttOptions& options = {});

}  // namespace espalier
