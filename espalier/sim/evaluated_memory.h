#pragma once

// What an evaluation says of memory, whoever ran the lists.

#include <span>
#include <vector>

#include "espalier/plan/staged_model.h"
#include "espalier/sim/evaluator.h"
#include "espalier/sim/list_engine.h"

namespace espalier::internal {

// What a stage holds on each of its devices from the beginning to the end.
void add_held_always(const StageMemory& memory, MemoryByCategory& held);

// What the engine found of the rest, by lane, into the peaks of their devices.
void set_peaks(const ListStructure& structure, std::span<const ListPeak> found,
               std::vector<MemoryByCategory>& peak);

// The first device whose peak exceeds its memory, if any.
void find_overflow(const Cluster& cluster, Evaluation& evaluation);

}  // namespace espalier::internal
