#pragma once

// What the runtime asks of a placement beside check_placement's rules. Fragments hand each other tensors, not
// memory: who reads a tensor of another fragment has it as it was when that fragment ended, and writes a copy
// of its own. One process has one memory. The two agree wherever what was written is read through the output
// of the operator that wrote it, as in-place layers are, or in the fragment that wrote it:
//
//   x = conv(…)      relu_(x)      y = add(relu_, …)     agree, wherever they stand
//   x = zeros(…)     v = x[0]      v.copy_(…)     y = x + 1     need `v.copy_` in the fragment that made `x`
//
// Parameters and buffers are one memory on a device anyway; between micro-batches a buffer that is written
// keeps its order only in one fragment.

#include "espalier/plan/plan.h"

namespace espalier {

// Throws InputError naming the operators where the two would differ. `fragments` pass check_fragments.
// O(operators + edges, times the writers of one memory, times log).
void require_whole_memory(const Graph& graph, const PipelinePlan& fragments);

}  // namespace espalier
