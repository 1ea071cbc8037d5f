#include "espalier/graph/orders.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <set>

#include "espalier/base/rng.h"
#include "espalier/graph/algorithms.h"
#include "espalier/graph/text.h"
#include "testing/random_graphs.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAreArray;

using Names = std::vector<std::string>;

Names names_in(const Graph& g, std::span<const OperatorId> order) {
  Names result;
  for (const OperatorId id : order) result.push_back(g.op(id).name);
  return result;
}
Names ordered(const Graph& g, TraversalOrder order, OrderDraw draw = {}) {
  return names_in(g, traversal_order(g, order, draw));
}

// Two sources; z, the first, leads far, a, the second, leads to two of the same operators.
//
//   z ─ y ─ m        numbered as they stand in the text: z a y b m c
//     ╲   ╱          edges: z-y z-b a-b a-c y-m b-m
//   a ─ b   c
Graph crossing() {
  return parse_graph(
      "x = input()\n"
      "z = f(x)\n"
      "a = f(x)\n"
      "y = f(z)\n"
      "b = f(z, a)\n"
      "m = f(y, b)\n"
      "c = f(a)\n");
}

TEST(Orders, AlphaIsByName) {
  EXPECT_THAT(ordered(crossing(), TraversalOrder::kAlpha), ElementsAre("a", "b", "c", "m", "y", "z"));
}

TEST(Orders, AlphaComparesTextsNotNumbers) {
  const Graph g = parse_graph("x = input()\nn9 = f(x)\nn10 = f(n9)\nN2 = f(n10)\n");
  EXPECT_THAT(ordered(g, TraversalOrder::kAlpha), ElementsAre("N2", "n10", "n9"));
}

TEST(Orders, TopoLifoTakesTheLastThatBecameReady) {
  // stack z a | take a: c is ready | take c | take z: y, b | take b | take y: m
  EXPECT_THAT(ordered(crossing(), TraversalOrder::kTopoLifo), ElementsAre("a", "c", "z", "b", "y", "m"));
}

TEST(Orders, TopoGenerationsKeepsTheOrderOfDiscovery) {
  // z discovers y, a discovers b and c, y and b discover m. By number within a depth c would still be last,
  // so here is a graph in which the two differ: the second source's successor has the smaller number.
  EXPECT_THAT(ordered(crossing(), TraversalOrder::kTopoGenerations),
              ElementsAre("z", "a", "y", "b", "c", "m"));
  const Graph g = parse_graph("x = input()\np = f(x)\nq = f(x)\nr = f(q)\ns = f(p)\n");
  EXPECT_THAT(ordered(g, TraversalOrder::kTopoGenerations), ElementsAre("p", "q", "s", "r"));
  EXPECT_THAT(names_in(g, breadth_first_order(g)), ElementsAre("p", "q", "r", "s"));
}

TEST(Orders, ReversedTopoIsTheStacksOrderBackwards) {
  EXPECT_THAT(ordered(crossing(), TraversalOrder::kReversedTopo), ElementsAre("m", "y", "b", "z", "c", "a"));
}

TEST(Orders, DepthFirstStartsAtEveryOperatorNotSeen) {
  EXPECT_THAT(ordered(crossing(), TraversalOrder::kDfsPreorder), ElementsAre("z", "y", "m", "b", "a", "c"));
  EXPECT_THAT(ordered(crossing(), TraversalOrder::kDfsPostorder), ElementsAre("m", "y", "b", "z", "c", "a"));
}

TEST(Orders, BreadthFirstSearchesOneSourceAfterTheOtherByName) {
  // From a: a b c m. From z: z y (b, m again).
  EXPECT_THAT(ordered(crossing(), TraversalOrder::kBfs), ElementsAre("a", "b", "c", "m", "z", "y"));
}

TEST(Orders, LexicoTopoTakesTheSmallestNameThatIsReady) {
  EXPECT_THAT(ordered(crossing(), TraversalOrder::kLexicoTopo), ElementsAre("a", "c", "z", "b", "y", "m"));
}

TEST(Orders, RandomIsOneShuffleForASeedAndAnotherForEachEpisode) {
  Rng rng(3);
  const Graph g = testing::random_graph(rng, {.operators = 40});
  const auto draw = [&](TraversalOrder order, std::uint64_t seed, std::uint64_t episode) {
    return ordered(g, order, {.seed = seed, .episode = episode});
  };
  const Names first = draw(TraversalOrder::kRandom, 1, 0);
  EXPECT_EQ(draw(TraversalOrder::kRandom, 1, 5), first);
  EXPECT_NE(draw(TraversalOrder::kRandom, 2, 0), first);
  const Names episode = draw(TraversalOrder::kRandomPerEpisode, 1, 0);
  EXPECT_EQ(draw(TraversalOrder::kRandomPerEpisode, 1, 0), episode);
  EXPECT_NE(draw(TraversalOrder::kRandomPerEpisode, 1, 1), episode);
  EXPECT_NE(draw(TraversalOrder::kRandomPerEpisode, 2, 0), episode);
}

TEST(Orders, AShuffleGivesEveryOrderEquallyOften) {
  const Graph g = parse_graph("x = input()\na = f(x)\nb = f(x)\nc = f(x)\n");
  std::map<Names, int> seen;
  for (std::uint64_t episode = 0; episode < 6000; ++episode) {
    ++seen[ordered(g, TraversalOrder::kRandomPerEpisode, {.seed = 7, .episode = episode})];
  }
  ASSERT_EQ(seen.size(), 6U);
  for (const auto& [order, count] : seen) EXPECT_NEAR(count, 1000, 150);  // five deviations of 29
}

TEST(Orders, InTurnTakesEachOfTheOthersAndThenBeginsAgain) {
  Rng rng(5);
  const Graph g = testing::random_graph(rng, {.operators = 40});
  const auto turn = [&](std::uint64_t episode) {
    return traversal_order(g, TraversalOrder::kInTurn, {.seed = 3, .episode = episode});
  };
  EXPECT_EQ(turn(0), traversal_order(g, TraversalOrder::kTopoGenerations));
  std::vector<std::vector<OperatorId>> others;
  for (const TraversalOrder order : traversal_orders()) {
    if (order == TraversalOrder::kRandom || changes_by_episode(order)) continue;
    others.push_back(traversal_order(g, order));
  }
  const std::size_t turns = others.size() + 1;
  std::vector<std::vector<OperatorId>> taken;
  for (std::size_t episode = 0; episode + 1 < turns; ++episode) taken.push_back(turn(episode));
  EXPECT_THAT(taken, UnorderedElementsAreArray(others));
  EXPECT_EQ(turn(turns + 2), turn(2));
  EXPECT_NE(turn(turns - 1), turn(2 * turns - 1)) << "each shuffle is another";
}

TEST(Orders, NamesParseBack) {
  EXPECT_EQ(traversal_orders().size(), 11U);
  for (const TraversalOrder order : traversal_orders()) {
    EXPECT_EQ(parse_traversal_order(to_text(order)), order);
  }
  EXPECT_EQ(parse_traversal_order("topo"), std::nullopt) << "two orders have had that name";
}

// ---- References: networkx's own code, word for word, on names and insertion-ordered adjacency.

struct Digraph {
  Names nodes;                         // in insertion order
  std::map<std::string, Names> edges;  // in insertion order
};

Digraph digraph(const Graph& g) {
  Digraph result;
  result.nodes = names_in(g, graph_order(g));
  for (const OperatorId id : graph_order(g)) {
    for (const OperatorId s : g.successors(id)) result.edges[g.op(id).name].push_back(g.op(s).name);
  }
  return result;
}

std::map<std::string, int> in_degrees(const Digraph& g) {
  std::map<std::string, int> degree;
  for (const std::string& node : g.nodes) degree[node];
  for (const auto& [node, others] : g.edges) {
    for (const std::string& other : others) ++degree[other];
  }
  return degree;
}

Names with_no_predecessor(const Digraph& g) {
  Names result;
  for (const std::string& node : g.nodes) {
    if (in_degrees(g).at(node) == 0) result.push_back(node);
  }
  return result;
}

// networkx 2.4, topological_sort: zero_indegree.pop()
Names reference_topo_lifo(Digraph g) {
  auto degree = in_degrees(g);
  Names zero = with_no_predecessor(g), order;
  while (!zero.empty()) {
    const std::string node = zero.back();
    zero.pop_back();
    for (const std::string& child : g.edges[node]) {
      if (--degree[child] == 0) zero.push_back(child);
    }
    order.push_back(node);
  }
  return order;
}

// networkx 2.6, topological_generations
Names reference_topo_generations(Digraph g) {
  auto degree = in_degrees(g);
  Names zero = with_no_predecessor(g), order;
  while (!zero.empty()) {
    const Names generation = std::exchange(zero, {});
    for (const std::string& node : generation) {
      for (const std::string& child : g.edges[node]) {
        if (--degree[child] == 0) zero.push_back(child);
      }
    }
    order.insert(order.end(), generation.begin(), generation.end());
  }
  return order;
}

Names reference_depth_first(Digraph g, Emit emit) {
  std::set<std::string> seen;
  Names order;
  const std::function<void(const std::string&)> visit = [&](const std::string& node) {
    if (!seen.insert(node).second) return;
    if (emit == Emit::kOnEntry) order.push_back(node);
    for (const std::string& child : g.edges[node]) visit(child);
    if (emit == Emit::kOnExit) order.push_back(node);
  };
  for (const std::string& node : g.nodes) visit(node);
  return order;
}

// A whole search from each source, all put end to end; then first occurrences.
Names reference_bfs(Digraph g) {
  Names all, order;
  Names starts = with_no_predecessor(g);
  std::sort(starts.begin(), starts.end());
  for (const std::string& start : starts) {
    std::set<std::string> seen{start};
    std::deque<std::string> queue{start};
    while (!queue.empty()) {
      all.push_back(queue.front());
      queue.pop_front();
      for (const std::string& child : g.edges[all.back()]) {
        if (seen.insert(child).second) queue.push_back(child);
      }
    }
  }
  for (const std::string& node : all) {
    if (std::find(order.begin(), order.end(), node) == order.end()) order.push_back(node);
  }
  return order;
}

Names reference_lexico(Digraph g) {
  auto degree = in_degrees(g);
  Names order;
  while (order.size() < g.nodes.size()) {
    std::optional<std::string> smallest;
    for (const auto& [node, missing] : degree) {
      if (missing == 0 && (!smallest || node < *smallest)) smallest = node;
    }
    for (const std::string& child : g.edges[*smallest]) --degree[child];
    degree.erase(*smallest);
    order.push_back(*smallest);
  }
  return order;
}

Names backwards(Names order) {
  std::reverse(order.begin(), order.end());
  return order;
}

const std::vector<Graph>& graphs_to_order() {
  static const std::vector<Graph> graphs = [] {
    std::vector<Graph> result = testing::all_small_graphs(4);
    Rng rng(5);
    for (std::size_t round = 0; round < 150; ++round) {
      result.push_back(testing::random_graph(
          rng, {.operators = 1 + rng.below(30),
                .shape = round % 2 == 0 ? testing::GraphShape::kSeriesParallel : testing::GraphShape::kDag,
                .mutations = round % 3 == 0,
                .loss = round % 4 != 0}));
    }
    return result;
  }();
  return graphs;
}

TEST(Orders, AreNetworkxsOnManyGraphs) {
  for (const Graph& g : graphs_to_order()) {
    const Digraph nx = digraph(g);
    SCOPED_TRACE(print_graph(g));
    EXPECT_EQ(ordered(g, TraversalOrder::kTopoLifo), reference_topo_lifo(nx));
    EXPECT_EQ(ordered(g, TraversalOrder::kTopoGenerations), reference_topo_generations(nx));
    EXPECT_EQ(ordered(g, TraversalOrder::kReversedTopo), backwards(reference_topo_lifo(nx)));
    EXPECT_EQ(ordered(g, TraversalOrder::kDfsPreorder), reference_depth_first(nx, Emit::kOnEntry));
    EXPECT_EQ(ordered(g, TraversalOrder::kDfsPostorder), reference_depth_first(nx, Emit::kOnExit));
    EXPECT_EQ(ordered(g, TraversalOrder::kBfs), reference_bfs(nx));
    EXPECT_EQ(ordered(g, TraversalOrder::kLexicoTopo), reference_lexico(nx));
    Names sorted = nx.nodes;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(ordered(g, TraversalOrder::kAlpha), sorted);
  }
}

TEST(Orders, HoldEveryOperatorOnceAndSomeAreTopological) {
  for (const Graph& g : graphs_to_order()) {
    for (const TraversalOrder order : traversal_orders()) {
      std::vector<OperatorId> all = traversal_order(g, order, {.seed = 2, .episode = 9});
      switch (order) {
        case TraversalOrder::kTopoLifo:
        case TraversalOrder::kTopoGenerations:
        case TraversalOrder::kLexicoTopo:
          EXPECT_TRUE(is_legal_order(g, all)) << to_text(order) << "\n" << print_graph(g);
          break;
        case TraversalOrder::kReversedTopo:
        case TraversalOrder::kDfsPostorder:
          std::reverse(all.begin(), all.end());
          EXPECT_TRUE(is_legal_order(g, all)) << to_text(order) << "\n" << print_graph(g);
          break;
        default:
          break;
      }
      std::sort(all.begin(), all.end());
      EXPECT_EQ(all, graph_order(g)) << to_text(order);
    }
  }
}

TEST(Orders, GenerationsRiseInDepth) {
  for (const Graph& g : graphs_to_order()) {
    const std::vector<std::uint32_t> depth = depths(g);
    const auto order = traversal_order(g, TraversalOrder::kTopoGenerations);
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end(), [&](OperatorId a, OperatorId b) {
      return depth[a.index()] < depth[b.index()];
    }));
  }
}

TEST(Orders, PreorderAndBreadthFirstAreNotTopologicalInGeneral) {
  const Graph g = crossing();
  EXPECT_FALSE(is_legal_order(g, traversal_order(g, TraversalOrder::kDfsPreorder))) << "b stands before a";
  EXPECT_FALSE(is_legal_order(g, traversal_order(g, TraversalOrder::kBfs))) << "b stands before z";
}

TEST(Orders, ALongChainNeedsNoDeepStack) {
  std::string text = "x = input()\nn0 = f(x)\n";
  for (int i = 1; i < 20'000; ++i) {
    text += "n" + std::to_string(i) + " = f(n" + std::to_string(i - 1) + ")\n";
  }
  const Graph g = parse_graph(text);
  std::vector<OperatorId> all = traversal_order(g, TraversalOrder::kDfsPostorder);
  EXPECT_THAT(traversal_order(g, TraversalOrder::kDfsPreorder), graph_order(g));
  std::reverse(all.begin(), all.end());
  EXPECT_EQ(all, graph_order(g));
}

TEST(DepthFirstWalk, GoesAgainstTheEdgesToo) {
  const Graph g = crossing();
  const OperatorId m = *g.find_operator("m");
  EXPECT_THAT(names_in(g, depth_first_walk(g, std::span(&m, 1), Along::kPredecessors, Emit::kOnExit)),
              ElementsAre("z", "y", "a", "b", "m"))
      << "what m needs, inputs first; c does not belong to it";
}

}  // namespace
}  // namespace espalier
