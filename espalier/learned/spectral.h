#pragma once

// Where a node lies in its graph as a whole: eigenvectors of the normalised Laplacian L = 1 - D^-½ A D^-½
// with the smallest eigenvalues that are not zero (Belkin, Niyogi, Neural Computation 2003; as positions of a
// graph network Dwivedi, Bresson, arXiv 2012.09699; in a placer LPCA-GAT, 2024). The first of them runs from
// one end of a graph to the other, the next ones divide it further.
//
// Edges count once and alike. Nodes without an edge have the eigenvalue 0, as L's row there is zero. A graph
// of several components has the eigenvectors of all of them.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "espalier/placement/instance.h"

namespace espalier::placement {

struct SpectralVectors {
  std::vector<double> values;   // eigenvalues that are not zero, ascending
  std::vector<double> vectors;  // nodes × values: columns of norm 1
};

// The first `count` of them, fewer where there are fewer: nodes less components. `neighbours`: by node,
// ascending, each edge from both sides, no node its own. Of a vector and its negative the one whose entry of
// largest magnitude is positive, the first of entries that are as large. Equal eigenvalues have some
// orthonormal vectors of their space. Residuals |L x - λ x| are below 1e-6 for some hundred nodes; since work
// is bounded, those of many nodes may stay at 1e-2, which is smooth enough for positions.
//
// The same bytes on one machine. O((nodes + edges · looks) · count), looks 50 to 1,000, fewest where nodes
// are many: milliseconds for 256 nodes, two seconds for 84,000.
SpectralVectors spectral_vectors(const Lists<std::uint32_t>& neighbours, std::size_t count);

// The same as numbers of a node: nodes × count, times √nodes so that a column's mean square is 1; zeros where
// there are fewer vectors.
std::vector<float> spectral_positions(const Lists<std::uint32_t>& neighbours, std::size_t count);

}  // namespace espalier::placement
