#pragma once

// Pipelines with several stages a device, laid in a loop or a V (schedule/stage_line.h), with the schedules
// that are made for them. The chain is cut into as many contiguous stages as devices times chunks, so that
// the heaviest device's share is as small as can be for one stage a device; with several, each stage's is.

#include <optional>

#include "espalier/planners/orders/named_orders.h"
#include "espalier/planners/planner.h"

namespace espalier {

struct LoopedOptions {
  // This schedule alone; none: interleaved, with whole and split backward, ZB-V, V-Half, V-Min, DualPipeV,
  // and with one stage a device the zero-bubble ones.
  std::optional<NamedOrders> orders = {};
  std::size_t max_chunks = 4;  // in a loop
  // What gains most, soon: interleaved and ZB-V alone, on the first row, where there are at most two
  // micro-batches for each device.
  bool briefly = false;
  bool may_split = true;  // then: backward in halves
};

// Tries each micro-batch size, each row of device_rows, and the layouts, and keeps the fastest by simulation
// that fits. Its plans carry lists. kUnsupported where operators are pinned, or no schedule applies: `why`
// says why. One state for each plan.
Outcome looped(const Problem& problem, const LoopedOptions& options, Context& context);

}  // namespace espalier
