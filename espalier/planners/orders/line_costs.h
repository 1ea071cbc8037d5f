#pragma once

// What a line of stages costs, as makers of orders count it while they fill time: durations, the way from one
// stage to the next, what a micro-batch takes of its device's memory. The simulator has the last word.

#include <optional>
#include <vector>

#include "espalier/cluster/cluster.h"
#include "espalier/schedule/stage_line.h"

namespace espalier {

struct LineCosts {
  // By stage. A stage that cannot be split has all of its backward in `input`.
  std::vector<Duration> forward, input, weights;
  std::vector<Duration> arrives;  // from the end of F on the stage before to where it may start here
  std::vector<Duration> returns;  // from the end of I on the stage behind
  std::vector<Bytes> taken;       // at F: tensors kept, received or sent on; with a limit one unit
  std::vector<Bytes> freed;       // of it at the end of I; the rest goes with W
  std::vector<Bytes> room;        // by place: for what F takes
};

// `limit`: room for so many micro-batches of all stages of a device; else what the device's memory leaves
// beside parameters, their like, workspace and receive slots. O(stages + crossings).
LineCosts line_costs(const StagedModel& model, const Cluster& cluster, const StageLine& line,
                     std::optional<std::uint32_t> limit);

}  // namespace espalier
