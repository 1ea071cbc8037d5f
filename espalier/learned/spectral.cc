#include "espalier/learned/spectral.h"

// Eigenvectors at the low end of a graph's normalised Laplacian: of long graphs, the usual ones here, these
// eigenvalues lie close together at zero, where Lanczos and plain subspace iteration need as many steps as
// the graph is long. So:
//
//   graph ─▶ pairs joined ─▶ pairs joined ─▶ … some dozen nodes        levels (Barnard, Simon, 1994)
//                                             eigenvectors there
//   refined ◀─ spread out ◀─ refined ◀─ spread out ◀┘
//
//   refine   Chebyshev filter that damps [a, 2], orthonormal columns, Rayleigh and Ritz, until residuals are
//            small or the level's rounds are used up (Zhou, Saad, Tiago, Chelikowsky, J. Comp. Phys. 2006)
//   a        the largest Ritz value of the block, which has kGuards columns more than are asked for
//
// A level keeps weights between joined nodes and within them: a coarse graph is the same eigenproblem on
// vectors that are D^½ times a constant within each pair, and spreading out keeps vectors orthonormal. The
// null space is known, D^½ on each component, and is projected out.
//
// Columns become orthonormal by the eigenvectors of their Gram matrix (Stathopoulos, Wu, SIAM J. Sci. Comput.
// 2002), twice; what depends on the others is drawn anew.
//
// Complexity: a look at all edges for all columns is edges · columns; up to 24 a round, up to 40 rounds, one
// round where nodes are many. Bad case: a path of more than a thousand nodes, whose gaps ask for more rounds.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "espalier/base/rng.h"

namespace espalier::placement {
namespace {

constexpr std::size_t kGuards = 4;
constexpr std::size_t kSmall = 64;                 // nodes that are not joined further
constexpr double kConverged = 1e-7, kNear = 1e-5;  // residuals of the graph itself, of coarser ones

// A weighted graph; weights within a node count too.
struct SpectralLevel {
  Lists<std::uint32_t> neighbours;       // by node; itself among them where it has weight within
  std::vector<double> weight;            // as neighbours.items
  std::vector<double> root;              // by node: √ of its weights together
  std::vector<std::uint32_t> component;  // by node
  std::size_t components = 0;
  std::vector<double> scaled;  // as weight: the entry of D^-½ A D^-½

  std::size_t nodes() const { return neighbours.size(); }

  void finish() {
    for (std::size_t n = 0; n < nodes(); ++n) {
      double sum = 0;
      for (std::size_t e = neighbours.begin[n]; e < neighbours.begin[n + 1]; ++e) sum += weight[e];
      root.push_back(std::sqrt(sum));
    }
    for (std::size_t n = 0; n < nodes(); ++n) {
      for (std::size_t e = neighbours.begin[n]; e < neighbours.begin[n + 1]; ++e)
        scaled.push_back(weight[e] / (root[n] * root[neighbours.items[e]]));
    }
  }
};

// Columns side by side: a row for each node.
struct Block {
  std::size_t rows, columns;
  std::vector<double> at;
  Block(std::size_t r, std::size_t c) : rows(r), columns(c), at(r * c) {}
  double* row(std::size_t r) { return at.data() + r * columns; }
  const double* row(std::size_t r) const { return at.data() + r * columns; }
};

SpectralLevel finest_level(const Lists<std::uint32_t>& neighbours) {
  SpectralLevel level;
  level.neighbours = neighbours;
  level.weight.assign(neighbours.items.size(), 1);
  const std::size_t nodes = neighbours.size();
  std::vector<char> seen(nodes);
  level.component.resize(nodes);
  std::vector<std::uint32_t> open;
  for (std::uint32_t first = 0; first < nodes; ++first) {
    if (seen[first] != 0) continue;
    seen[first] = 1;
    open.push_back(first);
    while (!open.empty()) {
      const std::uint32_t node = open.back();
      open.pop_back();
      level.component[node] = narrow(level.components);
      for (const std::uint32_t other : neighbours[node]) {
        if (seen[other] != 0) continue;
        seen[other] = 1;
        open.push_back(other);
      }
    }
    ++level.components;
  }
  level.finish();
  return level;
}

// By node the number of its pair: with the neighbour that is free and nearest for its own weight; what finds
// none joins the pair of its nearest neighbour.
std::vector<std::uint32_t> pairs_of(const SpectralLevel& level, std::size_t& pairs) {
  const auto nearest = [&](std::uint32_t node, const std::vector<std::optional<std::uint32_t>>& pair,
                           bool free) {
    std::optional<std::uint32_t> best;
    double most = 0;
    for (std::size_t e = level.neighbours.begin[node]; e < level.neighbours.begin[node + 1]; ++e) {
      const std::uint32_t other = level.neighbours.items[e];
      const double near = level.weight[e] / (level.root[other] * level.root[other]);
      if (other == node || pair[other].has_value() == free || near <= most) continue;
      best = other;
      most = near;
    }
    return best;
  };
  std::vector<std::optional<std::uint32_t>> pair(level.nodes());
  for (std::uint32_t node = 0; node < level.nodes(); ++node) {
    if (pair[node]) continue;
    const std::optional<std::uint32_t> other = nearest(node, pair, true);
    if (!other) continue;
    pair[node] = pair[*other] = narrow(pairs++);
  }
  std::vector<std::uint32_t> result;
  for (std::uint32_t node = 0; node < level.nodes(); ++node) {
    const std::optional<std::uint32_t> other = pair[node] ? node : nearest(node, pair, false);
    result.push_back(other ? *pair[*other] : narrow(pairs++));
  }
  return result;
}

SpectralLevel joined(const SpectralLevel& level, const std::vector<std::uint32_t>& pair, std::size_t pairs) {
  std::vector<std::vector<std::uint32_t>> members(pairs);
  for (std::uint32_t node = 0; node < level.nodes(); ++node) members[pair[node]].push_back(node);
  SpectralLevel made;
  made.components = level.components;
  std::vector<double> sum(pairs);
  for (const std::vector<std::uint32_t>& own : members) {
    std::vector<std::uint32_t> met;
    for (const std::uint32_t node : own) {
      for (std::size_t e = level.neighbours.begin[node]; e < level.neighbours.begin[node + 1]; ++e) {
        const std::uint32_t other = pair[level.neighbours.items[e]];
        if (sum[other] == 0) met.push_back(other);
        sum[other] += level.weight[e];
      }
    }
    std::sort(met.begin(), met.end());
    for (const std::uint32_t other : met) {
      made.neighbours.items.push_back(other);
      made.weight.push_back(sum[other]);
      sum[other] = 0;
    }
    made.neighbours.close();
    made.component.push_back(level.component[own.front()]);
  }
  made.finish();
  return made;
}

// D^-½ A D^-½ times a block.
Block product(const SpectralLevel& level, const Block& x) {
  Block y(x.rows, x.columns);
  for (std::size_t n = 0; n < x.rows; ++n) {
    double* out = y.row(n);
    for (std::size_t e = level.neighbours.begin[n]; e < level.neighbours.begin[n + 1]; ++e) {
      const double* in = x.row(level.neighbours.items[e]);
      const double factor = level.scaled[e];
      for (std::size_t c = 0; c < x.columns; ++c) out[c] += factor * in[c];
    }
  }
  return y;
}

void project(const SpectralLevel& level, Block& x) {
  Block part(level.components, x.columns);
  std::vector<double> whole(level.components);
  for (std::size_t n = 0; n < x.rows; ++n) {
    const std::size_t component = level.component[n];
    whole[component] += level.root[n] * level.root[n];
    for (std::size_t c = 0; c < x.columns; ++c) part.row(component)[c] += level.root[n] * x.row(n)[c];
  }
  for (std::size_t n = 0; n < x.rows; ++n) {
    const std::size_t component = level.component[n];
    for (std::size_t c = 0; c < x.columns; ++c) {
      double& entry = x.row(n)[c];
      entry = level.root[n] > 0 ? entry - level.root[n] * part.row(component)[c] / whole[component] : 0;
    }
  }
}

// xᵀ y: columns × columns.
Block products_of_columns(const Block& x, const Block& y) {
  Block sums(x.columns, y.columns);
  for (std::size_t n = 0; n < x.rows; ++n) {
    for (std::size_t a = 0; a < x.columns; ++a) {
      const double factor = x.row(n)[a];
      for (std::size_t b = 0; b < y.columns; ++b) sums.row(a)[b] += factor * y.row(n)[b];
    }
  }
  return sums;
}

Block times(const Block& x, const Block& small) {
  Block y(x.rows, small.columns);
  for (std::size_t n = 0; n < x.rows; ++n) {
    for (std::size_t a = 0; a < x.columns; ++a) {
      const double factor = x.row(n)[a];
      for (std::size_t b = 0; b < small.columns; ++b) y.row(n)[b] += factor * small.row(a)[b];
    }
  }
  return y;
}

struct SmallEigen {
  std::vector<double> values;  // descending
  Block vectors;               // columns
};

// One of Jacobi's rotations: makes a[p][q] zero.
void rotate(Block& a, Block& v, std::size_t p, std::size_t q) {
  const double across = a.row(p)[q];
  if (across == 0) return;
  const double theta = (a.row(q)[q] - a.row(p)[p]) / (2 * across);
  const double t = (theta >= 0 ? 1.0 : -1.0) / (std::abs(theta) + std::sqrt(theta * theta + 1));
  const double cosine = 1 / std::sqrt(t * t + 1), sine = t * cosine;
  const auto turn = [&](double& x, double& y) {
    const double old = x;
    x = cosine * old - sine * y;
    y = sine * old + cosine * y;
  };
  for (std::size_t i = 0; i < a.rows; ++i) turn(a.row(i)[p], a.row(i)[q]);
  for (std::size_t i = 0; i < a.rows; ++i) turn(a.row(p)[i], a.row(q)[i]);
  for (std::size_t i = 0; i < a.rows; ++i) turn(v.row(i)[p], v.row(i)[q]);
}

// Of a symmetric matrix, by Jacobi's method.
SmallEigen small_eigen(Block a) {
  const std::size_t size = a.rows;
  Block v(size, size);
  for (std::size_t i = 0; i < size; ++i) v.row(i)[i] = 1;
  constexpr int kSweeps = 30;
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    double beside = 0, all = 0;
    for (std::size_t i = 0; i < size; ++i) {
      for (std::size_t j = 0; j < size; ++j) {
        const double square = a.row(i)[j] * a.row(i)[j];
        all += square;
        if (i != j) beside += square;
      }
    }
    if (beside <= 1e-30 * all) break;
    for (std::size_t p = 0; p < size; ++p) {
      for (std::size_t q = p + 1; q < size; ++q) rotate(a, v, p, q);
    }
  }
  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t i, std::size_t j) { return a.row(i)[i] > a.row(j)[j]; });
  SmallEigen result{{}, Block(size, size)};
  for (std::size_t c = 0; c < size; ++c) {
    result.values.push_back(a.row(order[c])[order[c]]);
    for (std::size_t r = 0; r < size; ++r) result.vectors.row(r)[c] = v.row(r)[order[c]];
  }
  return result;
}

void draw_column(Block& x, std::size_t column, Rng& rng) {
  for (std::size_t n = 0; n < x.rows; ++n) x.row(n)[column] = rng.unit() - 0.5;
}

// Columns of norm 1, or 0 where there is nothing.
void scale_columns(Block& x) {
  std::vector<double> squares(x.columns);
  for (std::size_t n = 0; n < x.rows; ++n) {
    for (std::size_t c = 0; c < x.columns; ++c) squares[c] += x.row(n)[c] * x.row(n)[c];
  }
  for (double& square : squares) square = square > 0 ? 1 / std::sqrt(square) : 0;
  for (std::size_t n = 0; n < x.rows; ++n) {
    for (std::size_t c = 0; c < x.columns; ++c) x.row(n)[c] *= squares[c];
  }
}

// Orthonormal columns of the same space, without what the null space has of it.
void orthonormalise(const SpectralLevel& level, Block& x, Rng& rng) {
  constexpr double kDependent = 1e-10;
  constexpr int kMostTurns = 6;
  for (int turn = 0, whole = 0; whole < 2 && turn < kMostTurns; ++turn) {
    project(level, x);
    scale_columns(x);
    SmallEigen gram = small_eigen(products_of_columns(x, x));
    std::vector<std::size_t> lacking;
    for (std::size_t c = 0; c < x.columns; ++c) {
      const bool depends = gram.values[c] <= kDependent * gram.values.front();
      if (depends) lacking.push_back(c);
      const double factor = depends ? 0 : 1 / std::sqrt(gram.values[c]);
      for (std::size_t r = 0; r < x.columns; ++r) gram.vectors.row(r)[c] *= factor;
    }
    x = times(x, gram.vectors);
    for (const std::size_t c : lacking) draw_column(x, c, rng);
    whole = lacking.empty() ? whole + 1 : 0;
  }
}

struct RitzPairs {
  std::vector<double> values;     // of L, ascending
  std::vector<double> residuals;  // |L x - λ x|
};

// Turns the columns within their space so that they are as near to eigenvectors as it allows.
RitzPairs rayleigh_ritz(const SpectralLevel& level, Block& x) {
  Block y = product(level, x);
  Block small = products_of_columns(x, y);
  for (std::size_t i = 0; i < small.rows; ++i) {
    for (std::size_t j = 0; j < i; ++j)
      small.row(i)[j] = small.row(j)[i] = (small.row(i)[j] + small.row(j)[i]) / 2;
  }
  const SmallEigen turned = small_eigen(small);
  x = times(x, turned.vectors);
  y = times(y, turned.vectors);
  RitzPairs pairs{{}, std::vector<double>(x.columns)};
  for (const double value : turned.values) pairs.values.push_back(1 - value);
  for (std::size_t n = 0; n < x.rows; ++n) {
    for (std::size_t c = 0; c < x.columns; ++c) {
      const double off = y.row(n)[c] - turned.values[c] * x.row(n)[c];
      pairs.residuals[c] += off * off;
    }
  }
  for (double& residual : pairs.residuals) residual = std::sqrt(residual);
  return pairs;
}

// Chebyshev's polynomial of L that is within ±1 on [a, 2] and grows below, for as many degrees as it grows a
// millionfold: more would leave only the first vectors.
void filter(const SpectralLevel& level, Block& x, double a) {
  const double middle = (a + 2) / 2, half = (2 - a) / 2;
  const double growth = std::acosh(middle / half);
  constexpr double kMillionfold = 14.5;  // acosh of it
  const auto degree = static_cast<int>(std::clamp(kMillionfold / growth, 2.0, 24.0));
  // (L - middle) / half = (1 - middle - D^-½ A D^-½) / half
  const auto step = [&](const Block& from) {
    Block to = product(level, from);
    for (std::size_t i = 0; i < to.at.size(); ++i) to.at[i] = ((1 - middle) * from.at[i] - to.at[i]) / half;
    return to;
  };
  Block before = x;
  x = step(x);
  for (int k = 1; k < degree; ++k) {
    Block next = step(x);
    for (std::size_t i = 0; i < next.at.size(); ++i) next.at[i] = 2 * next.at[i] - before.at[i];
    before = std::move(x);
    x = std::move(next);
  }
}

// Until the first `count` columns are eigenvectors, or rounds are used up: many where nodes are few.
std::vector<double> refine(const SpectralLevel& level, Block& x, std::size_t count, double residual,
                           Rng& rng) {
  constexpr std::size_t kWork = 200'000;
  const std::size_t rounds = std::clamp<std::size_t>(kWork / level.nodes(), 1, 40);
  orthonormalise(level, x, rng);
  RitzPairs pairs = rayleigh_ritz(level, x);
  for (std::size_t round = 0; round < rounds; ++round) {
    const auto end = pairs.residuals.begin() + static_cast<std::ptrdiff_t>(count);
    if (*std::max_element(pairs.residuals.begin(), end) < residual) break;
    filter(level, x, std::clamp(pairs.values.back(), 1e-9, 1.9));
    orthonormalise(level, x, rng);
    pairs = rayleigh_ritz(level, x);
  }
  return std::move(pairs.values);
}

// Each pair's value to both of its nodes, by their part of its weight.
Block spread(const SpectralLevel& coarse, const SpectralLevel& fine, const std::vector<std::uint32_t>& pair,
             const Block& x) {
  Block y(fine.nodes(), x.columns);
  for (std::size_t n = 0; n < y.rows; ++n) {
    if (fine.root[n] == 0) continue;
    const double factor = fine.root[n] / coarse.root[pair[n]];
    for (std::size_t c = 0; c < x.columns; ++c) y.row(n)[c] = factor * x.row(pair[n])[c];
  }
  return y;
}

void fix_signs(Block& x) {
  constexpr double kAsLarge = 1 - 1e-6;  // rounding must not choose among entries that are equal
  for (std::size_t c = 0; c < x.columns; ++c) {
    double largest = 0;
    for (std::size_t n = 0; n < x.rows; ++n) largest = std::max(largest, std::abs(x.row(n)[c]));
    std::size_t first = 0;
    while (first + 1 < x.rows && std::abs(x.row(first)[c]) < kAsLarge * largest) ++first;
    if (x.rows == 0 || x.row(first)[c] >= 0) continue;
    for (std::size_t n = 0; n < x.rows; ++n) x.row(n)[c] = -x.row(n)[c];
  }
}

}  // namespace

SpectralVectors spectral_vectors(const Lists<std::uint32_t>& neighbours, std::size_t count) {
  std::vector<SpectralLevel> levels{finest_level(neighbours)};
  const std::size_t there_are = levels.front().nodes() - levels.front().components;
  const std::size_t found = std::min(count, there_are), columns = std::min(count + kGuards, there_are);
  if (found == 0) return {};
  std::vector<std::vector<std::uint32_t>> pair;
  while (levels.back().nodes() > kSmall) {
    std::size_t pairs = 0;
    std::vector<std::uint32_t> of_node = pairs_of(levels.back(), pairs);
    // A star is one pair: there is nothing to learn from what has fewer vectors than are asked for.
    if (pairs < levels.front().components + columns) break;
    levels.push_back(joined(levels.back(), of_node, pairs));
    pair.push_back(std::move(of_node));
  }
  Rng rng(1);
  Block x(levels.back().nodes(), columns);
  for (std::size_t c = 0; c < columns; ++c) draw_column(x, c, rng);
  std::vector<double> values;
  for (std::size_t i = levels.size(); i-- > 0;) {
    if (i + 1 < levels.size()) x = spread(levels[i + 1], levels[i], pair[i], x);
    values = refine(levels[i], x, found, i == 0 ? kConverged : kNear, rng);
  }
  SpectralVectors result;
  result.values.assign(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(found));
  fix_signs(x);
  for (std::size_t n = 0; n < x.rows; ++n)
    result.vectors.insert(result.vectors.end(), x.row(n), x.row(n) + found);
  return result;
}

std::vector<float> spectral_positions(const Lists<std::uint32_t>& neighbours, std::size_t count) {
  const SpectralVectors vectors = spectral_vectors(neighbours, count);
  const std::size_t nodes = neighbours.size(), found = vectors.values.size();
  const double scale = std::sqrt(static_cast<double>(nodes));
  std::vector<float> positions(nodes * count);
  for (std::size_t n = 0; n < nodes; ++n) {
    for (std::size_t c = 0; c < found; ++c)
      positions[n * count + c] = static_cast<float>(scale * vectors.vectors[n * found + c]);
  }
  return positions;
}

}  // namespace espalier::placement
