#pragma once

// What all workers measured in one step, as one trace. Includes libtorch; runtime/ only.

#include <optional>

#include "espalier/runtime/executor.h"
#include "espalier/runtime/host_clocks.h"
#include "espalier/runtime/planned_job.h"
#include "espalier/runtime/workers.h"
#include "espalier/trace/trace.h"

namespace espalier {

// One trace from all workers' spans and samples, on rank 0; `start` is when this worker's step began. Times
// of other hosts are shifted to worker 0's clock, and a note tells by how much (docs/semantics.md, values);
// `read` is the clock with which this worker took its times. Collective.
std::optional<Trace> gather_trace(Workers& workers, const PlannedJob& job, StepOutcome outcome,
                                  Clock::time_point start, const ReadClock& read = steady_time);

}  // namespace espalier
