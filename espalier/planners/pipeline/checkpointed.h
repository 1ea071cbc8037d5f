#pragma once

// Chains for devices whose memory binds: the graph in its own order, cut into many small segments, several to
// a device. Most segments keep only what they read and compute the rest again when they go back (Chen et al.,
// arXiv 1604.06174, §4); what memory is left spares a device's last segments that. Partition, memory and
// recomputation are one choice, as in AdaPipe (Sun et al., ASPLOS'24), which recomputes units of layers where
// this recomputes segments. docs/planners/checkpointed.md.
//
//     device 0   [0][1][2]               each holds its parameters, what each micro-batch in flight keeps in
//     device 1         [3][4][5 6 7]     its segments, and the insides of the one segment that goes back
//     device 2                     [8 9 10]
//
// Where plans may carry lists of orders the same pieces are laid in a V, too (v_chains.h).

#include "espalier/planners/planner.h"

namespace espalier {

struct CheckpointedOptions {
  OrderRule schedule = ScheduleKind::kOneFOneB;
};

// Tries each micro-batch size, each row of device_rows, segments of seven sizes, cut where few bytes cross,
// and as many micro-batches in flight as it has places, or fewer where those do not fit; keeps the
// fastest by simulation. Devices take segments in a row, so that the busiest has least to do that memory
// allows. Stages have one replica. What does not fit is tried again: kept segments as stages of their own,
// then, three times, on as much less memory as the simulator found too much. Then come V's, where nobody
// asked for a rule, and memory binds or micro-batches are few. Where nothing fits, the closest is a chain
// with one micro-batch in flight. kUnsupported where operators are pinned. A state is a micro-batch of a
// stage. O(pieces · log precision) for each plan, with up to 32 pieces a device. The same for any number of
// threads.
Outcome checkpointed(const Problem& problem, const CheckpointedOptions& options, Context& context);

}  // namespace espalier
