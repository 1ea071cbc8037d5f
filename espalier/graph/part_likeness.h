#pragma once

// Which parts of a Structure are the same computation. Internal to make_structure.

#include <span>

#include "espalier/graph/structure.h"

namespace espalier::internal {

// Fills in `hash` and `like`. Two parts are alike if their trees have the same shape and their operators,
// from left to right, agree: class, target, role, weight, what is carried, and where each tensor comes from:
// the same operator of the part, or the same place in the order in which tensors from outside are first read,
// with the same type. The border counts too: which results are read outside, which parameters are shared
// with outside, which colocation groups reach out. O((n + e) · depth).
void find_likeness(Structure& structure, const Graph& graph, std::span<const Weight> weights);

}  // namespace espalier::internal
