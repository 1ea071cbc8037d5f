#pragma once

// A second simulator, to compare the first with: written from docs/semantics.md and trace.h alone, with
// another structure (a clock that steps from instant to instant, maps of what is where, samples one by one),
// for clarity and not for speed. It shares no code with espalier/sim.

#include "espalier/schedule/schedule.h"
#include "espalier/trace/trace.h"

namespace espalier::testing {

struct ReferenceOptions {
  std::uint32_t slots_beyond_limit =
      1;  // receive slots per edge of a stage that does not say: in-flight limit + this many
};

// Throws InternalError if the schedule deadlocks. Polynomial, but slow: some thousand actions at most.
Trace reference_simulate(const StagedModel& model, const Cluster& cluster, const Schedule& schedule,
                         const ReferenceOptions& options = {});

}  // namespace espalier::testing
