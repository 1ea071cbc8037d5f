#include "espalier/learned/spectral.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>
#include <utility>

#include "espalier/base/rng.h"

namespace espalier::placement {
namespace {

using Edges = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

Lists<std::uint32_t> graph_of(std::size_t nodes, const Edges& edges) {
  std::vector<std::set<std::uint32_t>> of_node(nodes);
  for (const auto& [a, b] : edges) {
    of_node[a].insert(b);
    of_node[b].insert(a);
  }
  Lists<std::uint32_t> lists;
  for (const std::set<std::uint32_t>& own : of_node) {
    lists.items.insert(lists.items.end(), own.begin(), own.end());
    lists.close();
  }
  return lists;
}

// 0 - 1 - … from `first` on.
Edges path(std::uint32_t nodes, std::uint32_t first = 0) {
  Edges edges;
  for (std::uint32_t n = first; n + 1 < first + nodes; ++n) edges.emplace_back(n, n + 1);
  return edges;
}

Edges ring(std::uint32_t nodes, std::uint32_t first = 0) {
  Edges edges = path(nodes, first);
  edges.emplace_back(first + nodes - 1, first);
  return edges;
}

double dot(const SpectralVectors& found, std::size_t a, std::size_t b) {
  const std::size_t columns = found.values.size();
  double sum = 0;
  for (std::size_t i = 0; i < found.vectors.size(); i += columns)
    sum += found.vectors[i + a] * found.vectors[i + b];
  return sum;
}

// The largest |L x - λ x| of all vectors, as the definition has it.
double largest_residual(const Lists<std::uint32_t>& graph, const SpectralVectors& found) {
  double largest = 0;
  const std::size_t columns = found.values.size();
  for (std::size_t c = 0; c < columns; ++c) {
    double squares = 0;
    for (std::size_t n = 0; n < graph.size(); ++n) {
      double lx = graph[n].empty() ? 0 : found.vectors[n * columns + c];
      for (const std::uint32_t other : graph[n]) {
        const auto degrees = static_cast<double>(graph[n].size() * graph[other].size());
        lx -= found.vectors[other * columns + c] / std::sqrt(degrees);
      }
      const double off = lx - found.values[c] * found.vectors[n * columns + c];
      squares += off * off;
    }
    largest = std::max(largest, std::sqrt(squares));
  }
  return largest;
}

void expect_eigenvectors(const Lists<std::uint32_t>& graph, const SpectralVectors& found,
                         double tolerance = 1e-6) {
  EXPECT_LT(largest_residual(graph, found), tolerance);
  for (std::size_t a = 0; a < found.values.size(); ++a) {
    for (std::size_t b = 0; b <= a; ++b) EXPECT_NEAR(dot(found, a, b), a == b ? 1 : 0, 1e-9);
  }
}

// n nodes in a line: λ_k = 1 - cos(πk / (n - 1)); vectors √degree · cos(πki / (n - 1)).
TEST(Spectral, APathHasCosines) {
  for (const std::uint32_t nodes : {2U, 3U, 9U, 256U}) {
    const Lists<std::uint32_t> graph = graph_of(nodes, path(nodes));
    const SpectralVectors found = spectral_vectors(graph, 8);
    const std::size_t columns = std::min<std::size_t>(8, nodes - 1);
    ASSERT_EQ(found.values.size(), columns);
    expect_eigenvectors(graph, found);
    for (std::size_t c = 0; c < columns; ++c) {
      const double angle = std::numbers::pi * static_cast<double>(c + 1) / (nodes - 1);
      EXPECT_NEAR(found.values[c], 1 - std::cos(angle), 1e-9);
      double norm = 0;
      std::vector<double> expected;
      for (std::uint32_t i = 0; i < nodes; ++i) {
        expected.push_back(std::sqrt(static_cast<double>(graph[i].size())) * std::cos(angle * i));
        norm += expected.back() * expected.back();
      }
      // Inner nodes are larger by √2, so that the first entry that is largest may be a negative one.
      const double sign = found.vectors[c] > 0 ? 1 : -1;
      for (std::uint32_t i = 0; i < nodes; ++i)
        EXPECT_NEAR(found.vectors[i * columns + c], sign * expected[i] / std::sqrt(norm), 1e-3);
    }
  }
}

// λ = 1 - cos(2πk / n), each twice; any vector of it is a wave of length n / k.
TEST(Spectral, ARingHasWavesInPairs) {
  const std::uint32_t nodes = 100;
  const Lists<std::uint32_t> graph = graph_of(nodes, ring(nodes));
  const SpectralVectors found = spectral_vectors(graph, 8);
  expect_eigenvectors(graph, found);
  for (std::size_t c = 0; c < 8; ++c) {
    const std::size_t wave = c / 2 + 1;
    const double angle = 2 * std::numbers::pi * static_cast<double>(wave) / nodes;
    EXPECT_NEAR(found.values[c], 1 - std::cos(angle), 1e-9);
    double in_wave = 0;
    for (const double phase : {0.0, std::numbers::pi / 2}) {
      double part = 0;
      for (std::uint32_t i = 0; i < nodes; ++i)
        part += found.vectors[i * 8 + c] * std::cos(angle * i + phase) * std::sqrt(2.0 / nodes);
      in_wave += part * part;
    }
    EXPECT_NEAR(in_wave, 1, 1e-6);
  }
}

// The eigenvalues of a complete graph are n / (n - 1), those of a star 1 and once 2.
TEST(Spectral, CompleteGraphsAndStarsHaveWhatTheyAreKnownFor) {
  Edges complete, star;
  for (std::uint32_t a = 0; a < 90; ++a) {
    for (std::uint32_t b = 0; b < a; ++b) complete.emplace_back(a, b);
    if (a > 0) star.emplace_back(0, a);
  }
  for (const auto& [edges, value] : {std::pair(complete, 90.0 / 89), std::pair(star, 1.0)}) {
    const Lists<std::uint32_t> graph = graph_of(90, edges);
    const SpectralVectors found = spectral_vectors(graph, 4);
    expect_eigenvectors(graph, found);
    for (const double each : found.values) EXPECT_NEAR(each, value, 1e-9);
  }
  const SpectralVectors small = spectral_vectors(graph_of(4, {{0, 1}, {0, 2}, {0, 3}}), 8);
  ASSERT_EQ(small.values.size(), 3U);
  EXPECT_NEAR(small.values[0], 1, 1e-9);
  EXPECT_NEAR(small.values[2], 2, 1e-9);
}

// Two rings of 10, a path of 5, and two nodes alone: five components, 27 - 5 vectors.
TEST(Spectral, ComponentsHaveTheVectorsOfEach) {
  Edges edges = ring(10);
  for (const auto& [a, b] : ring(10, 10)) edges.emplace_back(a, b);
  for (const auto& [a, b] : path(5, 20)) edges.emplace_back(a, b);
  const Lists<std::uint32_t> graph = graph_of(27, edges);
  const SpectralVectors found = spectral_vectors(graph, 30);
  ASSERT_EQ(found.values.size(), 22U);
  expect_eigenvectors(graph, found);
  EXPECT_GT(found.values.front(), 0.1);
  const double first_of_ring = 1 - std::cos(2 * std::numbers::pi / 10);
  for (std::size_t c = 0; c < 4; ++c) EXPECT_NEAR(found.values[c], first_of_ring, 1e-9);
  EXPECT_NEAR(found.values[4], 1 - std::cos(std::numbers::pi / 4), 1e-9);
  for (std::size_t c = 0; c < 22; ++c) EXPECT_EQ(found.vectors[26 * 22 + c], 0);
  EXPECT_TRUE(spectral_vectors(graph_of(3, {}), 8).values.empty());
  EXPECT_TRUE(spectral_vectors({}, 8).values.empty());
}

TEST(Spectral, DrawnGraphsHaveSmallResidualsAndTheSameBytesTwice) {
  for (const std::uint32_t nodes : {30U, 200U, 700U}) {
    Rng rng(nodes);
    Edges edges = path(nodes);
    for (std::uint32_t i = 0; i < nodes; ++i)
      edges.emplace_back(i, static_cast<std::uint32_t>(rng.below(nodes)));
    std::erase_if(edges, [](const auto& edge) { return edge.first == edge.second; });
    const Lists<std::uint32_t> graph = graph_of(nodes, edges);
    const SpectralVectors found = spectral_vectors(graph, 8);
    expect_eigenvectors(graph, found);
    EXPECT_TRUE(std::is_sorted(found.values.begin(), found.values.end()));
    const SpectralVectors again = spectral_vectors(graph, 8);
    EXPECT_EQ(found.vectors, again.vectors);
    // The first entry that is as large as any is positive.
    for (std::size_t c = 0; c < 8; ++c) {
      double largest = 0;
      for (std::size_t n = 0; n < nodes; ++n)
        if (std::abs(found.vectors[n * 8 + c]) > std::abs(largest) * (1 + 1e-6))
          largest = found.vectors[n * 8 + c];
      EXPECT_GT(largest, 0);
    }
  }
}

// Eigenvalues 10⁻⁶ apart: the first position is the cosine all the same.
TEST(Spectral, TheFirstPositionOfALongPathRunsAlongIt) {
  const std::uint32_t nodes = 2'000;
  const std::vector<float> positions = spectral_positions(graph_of(nodes, path(nodes)), 2);
  ASSERT_EQ(positions.size(), nodes * 2);
  double squares = 0, along = 0;
  for (std::uint32_t n = 0; n < nodes; ++n) {
    const double position = positions[n * 2];
    squares += position * position;
    along += position * std::cos(std::numbers::pi * n / (nodes - 1)) * std::numbers::sqrt2;
  }
  EXPECT_NEAR(squares / nodes, 1, 1e-4);
  EXPECT_NEAR(std::abs(along) / nodes, 1, 1e-3);
}

TEST(Spectral, PositionsOfWhatHasFewerVectorsAreZero) {
  // λ = 2 alone, (1, -1) / √2; times √2.
  const std::vector<float> found = spectral_positions(graph_of(2, {{0, 1}}), 3);
  const std::vector<float> expected{1, 0, 0, -1, 0, 0};
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-6);
}

}  // namespace
}  // namespace espalier::placement
