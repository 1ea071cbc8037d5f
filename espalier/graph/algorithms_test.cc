#include "espalier/graph/algorithms.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>

#include "espalier/base/rng.h"
#include "espalier/graph/contraction.h"
#include "espalier/graph/text.h"
#include "testing/random_graphs.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;

// ---- Brute force: definitions, word for word

// reach[i][j]: a path leads from i to j, or i == j.
using Reach = std::vector<std::vector<char>>;
Reach all_paths(std::size_t n, const std::function<bool(std::size_t, std::size_t)>& edge) {
  Reach reach(n, std::vector<char>(n, 0));
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) reach[i][j] = i == j || edge(i, j) ? 1 : 0;
  }
  for (std::size_t k = 0; k < n; ++k) {  // Floyd, Warshall
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j)
        if (reach[i][k] != 0 && reach[k][j] != 0) reach[i][j] = 1;
    }
  }
  return reach;
}
Reach all_paths(const Graph& g) {
  return all_paths(g.operators().size(), [&](std::size_t i, std::size_t j) {
    const auto s = g.successors(OperatorId(i));
    return std::find(s.begin(), s.end(), OperatorId(j)) != s.end();
  });
}

// All small graphs, then random ones of every kind.
const std::vector<Graph>& many_graphs() {
  static const std::vector<Graph> graphs = [] {
    std::vector<Graph> result = testing::all_small_graphs(5);
    Rng rng(11);
    for (int round = 0; round < 300; ++round) {
      testing::RandomGraphOptions options;
      options.operators = 1 + rng.below(25);
      options.shape = round % 2 == 0 ? testing::GraphShape::kSeriesParallel : testing::GraphShape::kDag;
      options.mutations = round % 3 == 0;
      options.loss = round % 4 != 0;
      result.push_back(testing::random_graph(rng, options));
    }
    return result;
  }();
  return graphs;
}

std::vector<std::string> operator_names(const Graph& g, std::span<const OperatorId> ids) {
  std::vector<std::string> result;
  for (const OperatorId id : ids) result.push_back(g.op(id).name);
  return result;
}
std::vector<OperatorId> ids(const Graph& g, std::initializer_list<const char*> operator_names) {
  std::vector<OperatorId> result;
  for (const char* name : operator_names) result.push_back(g.find_operator(name).value());
  return result;
}

// The picture in the header.
Graph picture() {
  return parse_graph(
      "x = input()\n"
      "a = f(x)\n"
      "b1 = f(a)\n"
      "c = f(a)\n"
      "b2 = f(b1)\n"
      "d = g(b2, c)\n"
      "e = f(d)\n");
}

// ---- Paths

TEST(Depths, AreLongestPathsNotHops) {
  EXPECT_THAT(depths(parse_graph("x = input()\nr = f(x)\na = relu(r)\ny = add(a, r)\n")),
              ElementsAre(0, 1, 2));
}

TEST(CriticalPath, FollowsWeightsNotEdges) {
  const Graph g = picture();
  std::vector<Duration> weights(6, Duration(1));
  EXPECT_THAT(operator_names(g, critical_path(g, weights).operators), ElementsAre("a", "b1", "b2", "d", "e"));
  weights[2] = Duration(10);  // c
  const CriticalPath path = critical_path(g, weights);
  EXPECT_THAT(operator_names(g, path.operators), ElementsAre("a", "c", "d", "e"));
  EXPECT_EQ(path.length, Duration(13));  // 1 + 10 + 1 + 1
}

TEST(CriticalPath, IsTheHeaviestOfAllPaths) {
  Rng rng(5);
  for (const Graph& g : many_graphs()) {
    const std::size_t n = g.operators().size();
    if (n > 12) continue;
    std::vector<Duration> weights;
    for (std::size_t i = 0; i < n; ++i) weights.emplace_back(static_cast<std::int64_t>(rng.below(20)));
    Duration heaviest;
    const std::function<void(OperatorId, Duration)> walk = [&](OperatorId at, Duration before) {
      const Duration now = before + weights[at.index()];
      heaviest = std::max(heaviest, now);
      for (const OperatorId s : g.successors(at)) walk(s, now);
    };
    for (std::size_t i = 0; i < n; ++i) walk(OperatorId(i), Duration());
    const CriticalPath path = critical_path(g, weights);
    ASSERT_EQ(path.length, heaviest) << print_graph(g);
    Duration sum;
    for (const OperatorId id : path.operators) sum += weights[id.index()];
    ASSERT_EQ(sum, heaviest);
    for (std::size_t i = 0; i + 1 < path.operators.size(); ++i) {
      const auto s = g.successors(path.operators[i]);
      ASSERT_NE(std::find(s.begin(), s.end(), path.operators[i + 1]), s.end());
    }
    const std::vector<Duration> top = top_levels(g, weights);
    const std::vector<Duration> bottom = bottom_levels(g, weights);
    Duration through;
    for (std::size_t i = 0; i < n; ++i) through = std::max(through, top[i] + bottom[i]);
    ASSERT_EQ(through, heaviest);
  }
}

// ---- Convexity

TEST(Convexity, IsThatNoPathLeavesAndComesBack) {
  Rng rng(6);
  for (const Graph& g : many_graphs()) {
    const std::size_t n = g.operators().size();
    const Reach reach = all_paths(g);
    for (int round = 0; round < 32; ++round) {
      // Every subset of the small graphs, random ones of the others.
      std::vector<OperatorId> set;
      for (std::size_t i = 0; i < n; ++i) {
        if (n <= 5 ? (round >> i & 1) != 0 : rng.below(3) == 0) set.emplace_back(i);
      }
      bool expected = true;
      for (std::size_t v = 0; v < n; ++v) {
        if (std::find(set.begin(), set.end(), OperatorId(v)) != set.end()) continue;
        const auto member = [&](auto predicate) {
          return std::any_of(set.begin(), set.end(),
                             [&](OperatorId id) { return !g.op(id).duplicable && predicate(id.index()); });
        };
        const bool from = member([&](std::size_t s) { return reach[s][v] != 0; });
        const bool to = member([&](std::size_t s) { return reach[v][s] != 0; });
        if (from && to) expected = false;
      }
      ASSERT_EQ(is_convex(g, set), expected) << print_graph(g);
    }
  }
}

// ---- Orders and cuts

TEST(Orders, AreLegal) {
  for (const Graph& g : many_graphs()) {
    for (const auto& order : {graph_order(g), depth_first_order(g), breadth_first_order(g)}) {
      ASSERT_TRUE(is_legal_order(g, order)) << print_graph(g);
    }
  }
}

TEST(Orders, DifferInWhenTheyFinishABranch) {
  const Graph g = picture();
  EXPECT_THAT(operator_names(g, graph_order(g)), ElementsAre("a", "b1", "c", "b2", "d", "e"));
  EXPECT_THAT(operator_names(g, depth_first_order(g)), ElementsAre("a", "b1", "b2", "c", "d", "e"));
  EXPECT_THAT(operator_names(g, breadth_first_order(g)), ElementsAre("a", "b1", "c", "b2", "d", "e"));
}

TEST(Orders, IllegalOnesAreToldApart) {
  const Graph g = picture();
  EXPECT_FALSE(is_legal_order(g, ids(g, {"a", "b2", "b1", "c", "d", "e"})));
  EXPECT_FALSE(is_legal_order(g, ids(g, {"a", "b1", "c", "b2", "d"})));
  EXPECT_FALSE(is_legal_order(g, ids(g, {"a", "a", "b1", "c", "b2", "d"})));
}

// ---- Colocation

TEST(Contraction, AConvexNodeHoldsWhatLiesBetweenItsOperators) {
  const Graph g =
      parse_graph("x = input()\na = f(x) @colocate=0\nc = f(a)\nd = f(c) @colocate=0\ne = f(x)\n");
  const std::vector<OperatorId> all = graph_order(g);
  const Contraction c = contract_colocation(g, all);
  ASSERT_EQ(c.nodes.size(), 2U);
  EXPECT_THAT(operator_names(g, c.nodes[0]), ElementsAre("a", "c", "d"));
}

TEST(Contraction, JoinsExactlyWhatReachesEachOther) {
  Rng rng(8);
  for (int round = 0; round < 300; ++round) {
    GraphParts parts = testing::random_graph(rng, {.operators = 14, .mutations = round % 2 == 0}).parts();
    for (int pair = 0; pair < 2; ++pair) {  // groups that nobody's memory asks for
      const auto number = static_cast<std::uint32_t>(1000 + pair);
      for (int member = 0; member < 2; ++member)
        parts.operators[rng.below(parts.operators.size())].colocation = number;
    }
    const Graph g(with_colocation(parts));
    const std::vector<OperatorId> all = graph_order(g);
    const Reach together = all_paths(all.size(), [&](std::size_t i, std::size_t j) {
      const auto s = g.successors(OperatorId(i));
      return (g.op(OperatorId(i)).colocation &&
              g.op(OperatorId(i)).colocation == g.op(OperatorId(j)).colocation) ||
             std::find(s.begin(), s.end(), OperatorId(j)) != s.end();
    });
    const Contraction c = contract_colocation(g, all);
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (std::size_t j = 0; j < all.size(); ++j) {
        const bool joined = together[i][j] != 0 && together[j][i] != 0;
        ASSERT_EQ(c.node_of[i] == c.node_of[j], joined) << print_graph(g);
      }
    }
    for (std::size_t node = 0; node < c.nodes.size(); ++node) {
      ASSERT_TRUE(is_convex(g, c.nodes[node]) || std::any_of(c.nodes[node].begin(), c.nodes[node].end(),
                                                             [&](auto id) { return g.op(id).duplicable; }));
      for (const std::uint32_t s : c.successors[node]) ASSERT_GT(s, node) << "nodes stand in a legal order";
    }
  }
}

TEST(Contraction, TakesADeepGraphWithoutRecursion) {
  std::string lines = "batch 1\nx = input()\nn0 = f(x) @colocate=0\n";
  constexpr int kOperators = 20'000;
  for (int i = 1; i < kOperators; ++i) {
    lines += "n" + std::to_string(i) + " = f(n" + std::to_string(i - 1) + ")" +
             (i == kOperators - 1 ? " @colocate=0\n" : "\n");
  }
  const Graph g = parse_graph(lines);
  EXPECT_EQ(contract_colocation(g, graph_order(g)).nodes.size(), 1U)
      << "the first and the last hold all between";
  EXPECT_EQ(depths(g).back(), kOperators - 1U);
}

TEST(Backbone, LeavesOutDuplicablesAndWhatDoesNotLeadToTheLoss) {
  const Graph g = parse_graph(
      "x = input()\nk = constant() : i64[4]\n"
      "m = mask(k) : i64[4] @duplicable\n"
      "a = f(x, m)\n"
      "accuracy = f(a, m)\n"
      "h = f(a)\n"
      "loss = mean(h, m)\n");
  EXPECT_THAT(operator_names(g, backbone(g)), ElementsAre("a", "h", "loss"));
}

}  // namespace
}  // namespace espalier
