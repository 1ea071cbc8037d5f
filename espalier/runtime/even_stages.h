#pragma once

// A model cut into stages for measurements. Includes libtorch; runtime/ only.

#include <cstddef>
#include <vector>

#include "espalier/runtime/stage_runner.h"

namespace espalier {

// Runs of about equally many operators in the graph's order: `count` of them, fewer where colocation groups
// are in the way, since no cut goes through one.
std::vector<StageRunner::Interface> even_stages(const Graph& graph, std::size_t count);

// All of it as one stage.
StageRunner::Interface whole_model(const Graph& graph);

}  // namespace espalier
