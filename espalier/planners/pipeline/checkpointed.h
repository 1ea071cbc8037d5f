#pragma once

// Chains for devices whose memory binds: the graph in its own order, cut into many small segments, several to
// a device. Most segments keep only what they read and compute the rest again when they go back (Chen et al.,
// arXiv 1604.06174, §4); what memory is left spares a device's last segments that. Partition, memory and
// recomputation are one choice, as in AdaPipe (Sun et al., ASPLOS'24), with whole segments in its place of
// units.
//
//     device 0   [0][1][2]               each holds its parameters, what each micro-batch in flight keeps in
//     device 1         [3][4][5 6 7]     its segments, and the insides of the one segment that goes back
//     device 2                     [8 9 10]

#include "espalier/planners/planner.h"

namespace espalier {

struct CheckpointedOptions {
  OrderRule schedule = ScheduleKind::kOneFOneB;
};

// Tries each micro-batch size, each row of device_rows, 2 to 16 segments a device, cut where fewest bytes
// cross, and as many micro-batches in flight as the row has devices, or fewer where those do not fit; keeps
// the fastest by simulation. Devices take segments in a row, so that the busiest has least to do that memory
// allows. Stages have one replica. What the simulator finds too much on a device is taken from its memory,
// and it is tried again, three times. Where nothing fits, the closest is that with one micro-batch in flight.
// kUnsupported where operators are pinned. A state is a micro-batch of a stage; O(log precision · segments)
// for each plan. The same for any number of threads.
Outcome checkpointed(const Problem& problem, const CheckpointedOptions& options, Context& context);

}  // namespace espalier
