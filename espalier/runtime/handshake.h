#pragma once

// Before the workers of a run connect to each other, each introduces itself at the meeting place, and worker
// 0 compares: another program, plan, model or option in one of them would make them wait for messages that
// nobody sends, or train nonsense. Includes libtorch; runtime/ only.
//
//   worker 1, 2, …  ── introduction ──▶ store ──▶ worker 0 compares
//   all             ◀──── verdict ───── store ◀── worker 0

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "espalier/runtime/agreement.h"
#include "espalier/runtime/runtime.h"

namespace espalier {

// All workers of the run, by rank. Returns when all have come and agree. Where some differ, every worker
// throws the same InputError, which names them and in what; the store may go away then. Throws WorkerError
// naming the first worker that does not come within `timeout`.
std::vector<Acquaintance> shake_hands(c10d::Store& store, const World& world, const Introduction& mine,
                                      Duration timeout);

}  // namespace espalier
