#pragma once

// Sorts that deal rows out to groups and bring them back, as mixtures of experts do. Internal to the
// frontend.

#include <vector>

#include "espalier/frontend/program_reader.h"

namespace espalier {

// For each node: whether it is such a sort (or the sort of its permutation), so that what it does relates no
// sample to another. `mixes` says of all others whether they relate samples by their sizes (sample_mixing.h).
//
// Rows of all samples are sorted by their group; each group's rows are multiplied by its own matrix; the
// inverse permutation puts them back. In between only operators stand that treat each row by itself, how many
// rows a group has counts for nothing but the groups of `_grouped_mm`, and nothing in sorted order is left at
// the end. The places are the permutation itself, or its quotient by k where each row stands k times in the
// sort (k experts a token). Anything else, known or not, makes the sort one that mixes. O(nodes).
std::vector<bool> nodes_that_deal_rows_out(const FlatProgram& program, const std::vector<bool>& mixes);

}  // namespace espalier
