#pragma once

// A PipeDream profile as the sequence of layers that planners of plain chains take.

#include <cstddef>
#include <vector>

#include "espalier/frontend/published.h"

namespace espalier::literal {

// Nodes in topological order, of several that are ready the first in the file; `Input…` nodes without a
// predecessor are left out. Throws InputError for a graph with a cycle. O((nodes + edges) · log nodes).
std::vector<std::size_t> layer_sequence(const PipedreamProfile& profile);

}  // namespace espalier::literal
