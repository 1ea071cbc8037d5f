#pragma once

// The best that a person finds who cuts a network between layers and tries it out: contiguous runs of layers,
// one for each device in turn, with the cuts where the engine's step is shortest.

#include <cstdint>
#include <optional>
#include <span>

#include "espalier/placement/engine.h"
#include "espalier/planners/context.h"
#include "espalier/planners/placement/local_search.h"

namespace espalier::placement {

// Layers run from 0 on (layers_of). Begins with cuts of even work, of even memory and with human_expert's,
// then moves one cut at a time by 1, 2, 4, … layers while that helps: with two devices and at most 64 layers
// all cuts are tried. What does not fit counts by what it lacks. Nothing where no split that was seen fits.
// Takes a state for each look.
std::optional<FittingAssignment> best_layer_split(const Engine& engine, std::span<const std::uint32_t> layer,
                                                  Context& context);

}  // namespace espalier::placement
