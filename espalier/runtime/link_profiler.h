#pragma once

// What messages between two workers cost, with the run's own transport. Includes libtorch; runtime/ only.
//
// Latency and bandwidth come from messages to and fro while nobody computes. What a message takes from the
// compute thread at either end (the call itself, and the core time that the transport's threads take) comes
// from loops of computation with and without messages (docs/cost-model.md).

#include "espalier/cost/cost_table.h"
#include "espalier/runtime/workbench.h"

namespace espalier {

// Called by all workers; the first two talk, the others wait. The same result everywhere.
MeasuredLink measure_link(Workers& workers);

}  // namespace espalier
