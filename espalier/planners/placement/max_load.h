#pragma once

// DP and DPL of "Efficient Algorithms for Device Placement of DNN Graph Operators" (Tarnawski et al., NeurIPS
// 2020, section 5) as placers. They make the busiest device least busy: what a pipeline that is always full
// would wait for, where one step by itself also waits for paths. Their model in their units:
// espalier/planners/literal/max_load.h.
//
// Accelerators are the devices of the kind that runs everything fastest; where there is another kind, its
// devices take the part of the paper's CPUs, which pay nothing for messages and have no limit of memory. What
// a message costs an accelerator is the time that it holds the slowest way between two of them (between any
// two devices, where there is one accelerator), once for each output that crosses. Backward stands with
// forward; units are the paper's colours. An accelerator's memory is the least of theirs, a unit's bytes what
// it holds alone.
//
// Limits of that model here: a third kind of device stays empty; a unit that may not stand where it was put
// stands on the first device where it may; what then does not fit is repaired (repair.h). In a training
// graph, whose tasks are all forward tasks, forward and backward operators of a unit make cycles, which are
// fused.

#include "espalier/planners/literal/max_load.h"
#include "espalier/planners/placement/placer.h"

namespace espalier::placement {

// `space`: kDownsets (dp) or kLinear (dpl). No answer, with the reason, beyond 20,000 tasks, and for dp
// beyond 60,000 downsets. Cost: literal::max_load's.
Placed max_load_placement(const Instance& instance, literal::MaxLoadSpace space);

}  // namespace espalier::placement
