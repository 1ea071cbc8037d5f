#include "espalier/graph/series_parallel.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>

#include "espalier/base/ids.h"
#include "espalier/base/rng.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Edges = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

WeightedDag dag_of(std::size_t n, const Edges& edges, const std::vector<std::int64_t>& weights = {}) {
  WeightedDag dag;
  dag.predecessors.resize(n), dag.successors.resize(n);
  for (std::size_t v = 0; v < n; ++v) dag.weights.emplace_back(weights.empty() ? 1 : weights[v]);
  for (const auto& [from, to] : edges) {
    dag.successors[from].push_back(to);
    dag.predecessors[to].push_back(from);
  }
  for (auto* lists : {&dag.predecessors, &dag.successors}) {
    for (auto& list : *lists) std::sort(list.begin(), list.end());
  }
  return dag;
}

std::string text_of(const SeriesParallelTree& tree, std::uint32_t node) {
  const auto& part = tree.nodes[node];
  if (part.kind == PartKind::kLeaf) return std::to_string(part.leaf);
  std::string out;
  for (const std::uint32_t child : part.children) {
    if (!out.empty()) out += part.kind == PartKind::kSeries ? " " : " | ";
    out += text_of(tree, child);
  }
  return part.kind == PartKind::kParallel ? "(" + out + ")" : tree.root == node ? out : "[" + out + "]";
}
std::string text_of(const SeriesParallelTree& tree) {
  return text_of(tree, tree.root);
}

constexpr SeriesParallelOptions kExact{.staircases = Staircases::kKept};

// ---- References, by definition

using Order = std::vector<std::vector<char>>;  // [i][j]: i before j

Order closure(std::size_t n, const Edges& edges) {
  Order before(n, std::vector<char>(n, 0));
  for (const auto& [from, to] : edges) before[from][to] = 1;
  for (std::size_t k = 0; k < n; ++k) {
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        if (before[i][k] != 0 && before[k][j] != 0) before[i][j] = 1;
      }
    }
  }
  return before;
}

Edges edges_of(const WeightedDag& dag) {
  Edges edges;
  for (std::size_t v = 0; v < dag.weights.size(); ++v) {
    for (const std::uint32_t w : dag.successors[v]) edges.emplace_back(narrow(v), w);
  }
  return edges;
}

// The order that a tree says.
Order order_of(const SeriesParallelTree& tree, std::size_t n) {
  Order before(n, std::vector<char>(n, 0));
  std::vector<std::vector<std::uint32_t>> leaves(tree.nodes.size());
  for (std::size_t i = 0; i < tree.nodes.size(); ++i) {
    const auto& node = tree.nodes[i];
    if (node.kind == PartKind::kLeaf) leaves[i].push_back(node.leaf);
    for (const std::uint32_t child : node.children) {
      if (node.kind == PartKind::kSeries) {
        for (const std::uint32_t a : leaves[i]) {
          for (const std::uint32_t b : leaves[child]) before[a][b] = 1;
        }
      }
      leaves[i].insert(leaves[i].end(), leaves[child].begin(), leaves[child].end());
    }
  }
  EXPECT_EQ(leaves[tree.root].size(), n);
  return before;
}

// By reductions of the transitive reduction: two nodes of which one is the other's only successor and that
// one its only predecessor become one node, and so do two with equal neighbours.
bool reduces_to_one_node(std::size_t n, const Edges& edges) {
  const Order before = closure(n, edges);
  Order next = before;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      for (std::size_t k = 0; k < n; ++k) {
        if (before[i][k] != 0 && before[k][j] != 0) next[i][j] = 0;
      }
    }
  }
  std::vector<char> gone(n, 0);
  std::size_t left = n;
  const auto degree = [&](std::size_t v, bool out) {
    int count = 0;
    for (std::size_t w = 0; w < n; ++w) count += gone[w] == 0 && (out ? next[v][w] : next[w][v]) != 0 ? 1 : 0;
    return count;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t u = 0; u < n; ++u) {
      for (std::size_t v = 0; v < n; ++v) {
        if (u == v || gone[u] != 0 || gone[v] != 0) continue;
        const bool series = next[u][v] != 0 && degree(u, true) == 1 && degree(v, false) == 1;
        bool twins = next[u][v] == 0 && next[v][u] == 0;
        for (std::size_t w = 0; w < n; ++w) {
          if (gone[w] == 0) twins = twins && next[u][w] == next[v][w] && next[w][u] == next[w][v];
        }
        if (!series && !twins) continue;
        if (series) next[u] = next[v];
        gone[v] = 1;
        --left;
        changed = true;
      }
    }
  }
  return left == 1;
}

// The shortest length of any tree that says at least this order: all ways to split each set in two.
std::int64_t shortest_tree(std::size_t n, const Order& before, const std::vector<std::int64_t>& weights) {
  std::vector<std::int64_t> best(std::size_t{1} << n, 0);
  for (std::size_t set = 1; set < best.size(); ++set) {
    if ((set & (set - 1)) == 0) {
      for (std::size_t v = 0; v < n; ++v) best[set] += (set >> v & 1) != 0 ? weights[v] : 0;
      continue;
    }
    best[set] = std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
    for (std::size_t part = (set - 1) & set; part > 0; part = (part - 1) & set) {
      const std::size_t rest = set & ~part;
      bool there = false, back = false;
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t j = 0; j < n; ++j) {
          if (before[i][j] == 0) continue;
          there = there || ((part >> i & 1) != 0 && (rest >> j & 1) != 0);
          back = back || ((rest >> i & 1) != 0 && (part >> j & 1) != 0);
        }
      }
      if (!back) best[set] = std::min(best[set], best[part] + best[rest]);
      if (!back && !there) best[set] = std::min(best[set], std::max(best[part], best[rest]));
    }
  }
  return best.back();
}

std::int64_t longest_path(std::size_t n, const Order& before, const std::vector<std::int64_t>& weights) {
  std::vector<std::int64_t> path(n, 0);
  for (std::size_t round = 0; round < n; ++round) {  // a path has at most n nodes
    for (std::size_t v = 0; v < n; ++v) {
      std::int64_t start = 0;
      for (std::size_t u = 0; u < n; ++u) start = std::max(start, before[u][v] != 0 ? path[u] : 0);
      path[v] = start + weights[v];
    }
  }
  return *std::max_element(path.begin(), path.end());
}

// Everything that holds for any tree.
void expect_sound(const WeightedDag& dag, const SeriesParallelTree& tree) {
  const std::size_t n = dag.weights.size();
  const Edges edges = edges_of(dag);
  const Order graph = closure(n, edges), said = order_of(tree, n);
  Edges with_waits = edges;
  for (const auto& wait : tree.waits) {
    std::uint64_t pairs = 0;
    for (const std::uint32_t from : wait.from) {
      for (const std::uint32_t to : wait.to) {
        pairs += graph[from][to] == 0 ? 1 : 0;
        with_waits.emplace_back(from, to);
      }
    }
    ASSERT_EQ(pairs, wait.pairs);
  }
  ASSERT_EQ(closure(n, with_waits), said) << text_of(tree);
  std::vector<std::int64_t> weights;
  for (const Weight w : dag.weights) weights.push_back(w.count());
  ASSERT_EQ(tree.length.count(), longest_path(n, said, weights));
  ASSERT_EQ(tree.longest_path.count(), longest_path(n, graph, weights));
  for (const auto& node : tree.nodes) {
    ASSERT_EQ(node.kind == PartKind::kLeaf, node.children.empty());
    for (const std::uint32_t child : node.children) ASSERT_NE(tree.nodes[child].kind, node.kind);
  }
}

Edges edges_of_number(std::size_t n, std::size_t bits) {
  Edges edges;
  for (std::uint32_t j = 1; j < n; ++j) {
    for (std::uint32_t i = 0; i < j; ++i, bits >>= 1) {
      if ((bits & 1) != 0) edges.emplace_back(i, j);
    }
  }
  return edges;
}

// ---- All small orders

TEST(SeriesParallel, OfEverySmallOrderIsExactWhereThereIsAForm) {
  Rng rng(3);
  std::size_t with_form = 0, without = 0, best = 0;
  for (std::size_t n = 1; n <= 6; ++n) {
    const std::size_t pairs = n * (n - 1) / 2;
    for (std::size_t bits = 0; bits < std::size_t{1} << pairs; bits += n < 6 ? 1 : 1 + rng.below(15)) {
      const Edges edges = edges_of_number(n, bits);
      std::vector<std::int64_t> weights;
      for (std::size_t v = 0; v < n; ++v) weights.push_back(static_cast<std::int64_t>(rng.below(4)));
      const WeightedDag dag = dag_of(n, edges, weights);
      const bool has_form = reduces_to_one_node(n, edges);
      const SeriesParallelTree exact = series_parallel(dag, kExact), flat = series_parallel(dag);
      for (const auto* tree : {&exact, &flat}) {
        expect_sound(dag, *tree);
        if (HasFatalFailure()) return;
      }
      ASSERT_EQ(exact.waits.empty(), has_form) << n << " nodes, edges " << bits << ": " << text_of(exact);
      if (has_form) {
        ASSERT_EQ(flat.length, exact.length) << "staircases cost nothing";
      }
      (has_form ? with_form : without) += 1;
      const std::int64_t optimum = shortest_tree(n, closure(n, edges), weights);
      ASSERT_GE(exact.length.count(), optimum);
      best += !has_form && exact.length.count() == optimum ? 1 : 0;
    }
  }
  EXPECT_GT(with_form, 1000U);
  EXPECT_GT(best * 100, without * 90) << best << " of " << without << " tangles are cut as well as can be";
}

TEST(SeriesParallel, OfLargerRandomOrdersIsSound) {
  Rng rng(4);
  for (int round = 0; round < 400; ++round) {
    const std::size_t n = 7 + rng.below(30);
    Edges edges;
    std::vector<std::int64_t> weights;
    for (std::uint32_t j = 0; j < n; ++j) {
      weights.push_back(static_cast<std::int64_t>(rng.below(10)));
      for (std::uint32_t i = j > 6 ? j - 6 : 0; i < j; ++i) {
        if (rng.below(4) == 0) edges.emplace_back(i, j);
      }
    }
    const WeightedDag dag = dag_of(n, edges, weights);
    for (const std::size_t depth : {64U, 2U, 0U}) {
      expect_sound(dag, series_parallel(dag, {.max_depth = depth}));
      if (HasFatalFailure()) return;
      ASSERT_EQ(series_parallel(dag, {.staircases = Staircases::kKept, .max_depth = depth}).waits.empty() &&
                    depth == 64,
                depth == 64 && reduces_to_one_node(n, edges));
    }
  }
}

// ---- What people draw

TEST(SeriesParallel, BranchesStandBetweenWhatAllPathsPass) {
  // a → b1 → b2 → d → e, a → c → d, and a residual edge a → d, which says nothing new.
  const WeightedDag dag = dag_of(6, {{0, 1}, {0, 2}, {1, 3}, {3, 4}, {2, 4}, {0, 4}, {4, 5}});
  EXPECT_EQ(text_of(series_parallel(dag)), "0 ([1 3] | 2) 4 5");
}

TEST(SeriesParallel, LayersThatReadAllOfTheLayerBeforeAreASeries) {
  EXPECT_EQ(text_of(series_parallel(dag_of(4, {{0, 2}, {0, 3}, {1, 2}, {1, 3}}))), "(0 | 1) (2 | 3)");
}

TEST(SeriesParallel, TheNWaitsWhereItCostsLeast) {
  // 0 before 2; 1 before 2 and 3. A wait of 3 for 0 costs nothing if 0 is no longer than 1.
  const SeriesParallelTree tree = series_parallel(dag_of(4, {{0, 2}, {1, 2}, {1, 3}}, {2, 3, 1, 1}));
  EXPECT_EQ(text_of(tree), "(0 | 1) (2 | 3)");
  ASSERT_EQ(tree.waits.size(), 1U);
  EXPECT_THAT(tree.waits[0].from, ElementsAre(0));
  EXPECT_THAT(tree.waits[0].to, ElementsAre(3));
  EXPECT_EQ(tree.waits[0].pairs, 1U);
  EXPECT_EQ(tree.length, tree.longest_path);
}

TEST(SeriesParallel, TwoTowersWithOneEdgeBetweenThemAreCutOnce) {
  // 0 2 4 6 8 and 1 3 5 7 9, and 4 → 7.
  Edges edges{{4, 7}};
  for (std::uint32_t i = 0; i < 8; ++i) edges.emplace_back(i, i + 2);
  const SeriesParallelTree tree = series_parallel(dag_of(10, edges));
  EXPECT_EQ(text_of(tree), "([0 2 4] | [1 3 5]) ([6 8] | [7 9])");
  EXPECT_EQ(tree.length, tree.longest_path);
}

// An encoder of `layers` nodes, a decoder of as many steps; each step has a node of its own, a projection of
// the encoder's result and a node that reads both.
WeightedDag encoder_and_decoder(std::uint32_t layers) {
  Edges edges;
  for (std::uint32_t i = 1; i < layers; ++i) edges.emplace_back(i - 1, i);
  const std::uint32_t memory = layers - 1;
  for (std::uint32_t step = 0; step < layers; ++step) {
    const std::uint32_t own = layers + 3 * step, projection = own + 1, join = own + 2;
    if (step > 0) edges.emplace_back(own - 1, own);
    edges.emplace_back(memory, projection);
    edges.emplace_back(projection, join);
    edges.emplace_back(own, join);
  }
  return dag_of(4 * layers, edges);
}

TEST(SeriesParallel, AMemoryThatEachStepReadsIsNoTangle) {
  const SeriesParallelTree tree = series_parallel(encoder_and_decoder(3));
  EXPECT_EQ(text_of(tree), "([0 1 2 4] | 3) 5 (6 | 7) 8 (9 | 10) 11");
  EXPECT_EQ(tree.length, tree.longest_path);
}

TEST(SeriesParallel, AStaircaseOfLookUpsStandsBesideItsSteps) {
  // Each step reads a source of its own.
  Edges edges;
  const std::uint32_t steps = 12;
  for (std::uint32_t i = 0; i < steps; ++i) {
    if (i > 0) edges.emplace_back(3 * i - 1, 3 * i + 1);  // 3i: the source, 3i+1: the step's own, 3i+2: both
    edges.emplace_back(3 * i, 3 * i + 2);
    edges.emplace_back(3 * i + 1, 3 * i + 2);
  }
  std::vector<std::int64_t> weights(3 * steps, 4);
  for (std::uint32_t i = 0; i < steps; ++i) weights[3 * i] = 1;
  const SeriesParallelTree tree = series_parallel(dag_of(3 * steps, edges, weights));
  std::string expected;
  for (std::uint32_t i = 0; i < steps; ++i) {
    expected += (i > 0 ? " (" : "(") + std::to_string(3 * i) + " | " + std::to_string(3 * i + 1) + ") " +
                std::to_string(3 * i + 2);
  }
  EXPECT_EQ(text_of(tree), expected);
  EXPECT_EQ(tree.length, tree.longest_path);
}

TEST(SeriesParallel, AGridIsCutIntoItsDiagonals) {
  Edges edges;
  const auto at = [](std::uint32_t row, std::uint32_t column) { return row * 3 + column; };
  for (std::uint32_t i = 0; i < 3; ++i) {
    for (std::uint32_t j = 0; j < 3; ++j) {
      if (i > 0) edges.emplace_back(at(i - 1, j), at(i, j));
      if (j > 0) edges.emplace_back(at(i, j - 1), at(i, j));
    }
  }
  const SeriesParallelTree tree = series_parallel(dag_of(9, edges));
  EXPECT_EQ(text_of(tree), "0 (1 | 3) (2 | 4 | 6) (5 | 7) 8");
  EXPECT_EQ(tree.length, tree.longest_path);
}

TEST(SeriesParallel, OfNothingIsEmpty) {
  EXPECT_THAT(series_parallel(WeightedDag()).nodes, IsEmpty());
}

TEST(SeriesParallel, TakesDeepNestsAndLongChains) {
  constexpr std::uint32_t kSteps = 10'000;
  const SeriesParallelTree flat = series_parallel(encoder_and_decoder(kSteps));
  EXPECT_EQ(flat.length, flat.longest_path);
  EXPECT_EQ(flat.nodes[flat.root].children.size(), 2U * kSteps);
  // Each node reads one source of its own and all that was there before: nested as deep as it is long.
  Edges edges;
  for (std::uint32_t i = 2; i < 2 * kSteps; i += 2) {
    edges.emplace_back(i - 2, i);
    edges.emplace_back(i - 1, i);
  }
  const SeriesParallelTree nest = series_parallel(dag_of(2 * kSteps, edges), kExact);
  EXPECT_LE(nest.longest_path, nest.length);
}

}  // namespace
}  // namespace espalier
