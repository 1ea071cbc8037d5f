#pragma once

// What a plan's evaluation says, to compare it with a simulation.

#include <string>

#include "espalier/sim/evaluator.h"
#include "espalier/trace/trace.h"

namespace espalier::testing {

// What a trace says that an evaluation says too, each byte class at the first largest total.
Evaluation summary_of(const Trace& trace, const Cluster& cluster);

// "39 ns [ 0 4 0 … ] [ … ] overflow 1": the iteration, each device's peak by category, who overflows.
std::string text(const Evaluation& evaluation);

}  // namespace espalier::testing
