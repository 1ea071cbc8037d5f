#pragma once

// Plans near an answer of the partitioner that its model rates no better, but the simulator may: a bottleneck
// does not know that a stage without forward work stands idle until the first gradient arrives, nor what a
// further stage between two others holds.

#include <vector>

#include "espalier/planners/pipeline/graphpipe_search.h"

namespace espalier::internal {

// Each with one change, made with devices that the answer leaves idle, or with those of the stage that takes
// least with fewer replicas:
//   - what is light at the beginning of a stage that several others feed (a concatenation) becomes a stage of
//     its own: it takes messages while the stage behind it computes;
//   - of the slowest stages, those of one step time together, each gets more replicas (as many as make its
//     largest share smaller), or is cut where its work is divided most evenly. Where devices do not suffice
//     for all of them, the first ones. Replicas may also be shared out to both parts of a stage that is cut.
// Stages stand in a row again; times of changed stages are scaled by their work. `size` is that of all
// stages. O(places + edges).
std::vector<PipePlan> neighbours(const PipePlan& plan, const PipeSize& size);

}  // namespace espalier::internal
