#pragma once

// Names for parts of a graph that tell them apart: of stages, of branches.
//
// A name is where the part's operators come from, as briefly as the parts beside it allow: a module
// (`vision`), a run of numbered modules (`vit.layers.0-2`), the first and the last module of a part that has
// several (`pooler-head`), else the first and the last operator. What all operators have in common (`m.` of a
// wrapper) is left out. Letters, digits and `_ . - #` only.

#include <span>
#include <string>
#include <vector>

#include "espalier/graph/graph.h"

namespace espalier {

// One name for each set, each once, none of them the name of a module of which the set holds less than half.
// `given` has a name for each set, or is empty; where it is not an empty text, it stays. Sets have no
// operator in common but duplicable ones, which count only where a set has nothing else; no set is empty.
// O(operators · length of their module paths).
std::vector<std::string> part_names(const Graph& graph, std::span<const std::vector<OperatorId>> sets,
                                    std::span<const std::string> given = {});

}  // namespace espalier
