#include "espalier/graph/algorithms.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "espalier/base/rng.h"
#include "espalier/graph/text.h"
#include "testing/random_graphs.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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
std::string text(const Graph& g, const std::vector<Segment>& segments) {
  std::string result;
  for (const Segment& segment : segments) {
    result += segment.kind == SegmentKind::kSerial     ? "serial"
              : segment.kind == SegmentKind::kBranches ? "branches"
                                                       : "tangle";
    for (std::size_t i = 0; i < segment.branches.size(); ++i) {
      if (i > 0) result += " |";
      for (const std::string& name : operator_names(g, segment.branches[i])) result += " " + name;
    }
    result += "\n";
  }
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

// ---- Reachability and convexity

TEST(Reachability, EqualsAllPathsWithAndWithoutStorage) {
  for (const Graph& g : many_graphs()) {
    const Reach expected = all_paths(g);
    const Reachability stored(g);
    const Reachability searched(g, {.max_memory = Bytes(0)});
    ASSERT_TRUE(stored.stored());
    ASSERT_FALSE(searched.stored());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      for (std::size_t j = 0; j < expected.size(); ++j) {
        ASSERT_EQ(stored.reaches(OperatorId(i), OperatorId(j)), expected[i][j] != 0) << print_graph(g);
        ASSERT_EQ(searched.reaches(OperatorId(i), OperatorId(j)), expected[i][j] != 0) << print_graph(g);
      }
    }
  }
}

TEST(Reachability, SeesAcrossWordsOf64) {
  std::string lines = "x = input()\nn0 = f(x)\n";
  for (int i = 1; i < 200; ++i) {
    // Two chains, even and odd, from one operator.
    lines += "n" + std::to_string(i) + " = f(n" + std::to_string(std::max(0, i - 2)) + ")\n";
  }
  const Graph g = parse_graph(lines);
  const Reachability reach(g);
  EXPECT_TRUE(reach.reaches(OperatorId(2), OperatorId(198)));
  EXPECT_FALSE(reach.reaches(OperatorId(2), OperatorId(199)));
  EXPECT_TRUE(reach.reaches(OperatorId(0), OperatorId(199)));
  EXPECT_TRUE(reach.independent(OperatorId(130), OperatorId(131)));
}

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

TEST(Cuts, AreWhereOneTensorCrosses) {
  // Behind d two tensors are alive (d and the skip s); the mask m is computed on both sides.
  const Graph g = parse_graph(
      "x = input()\n"
      "k = constant() : i64[4]\n"
      "m = mask(k) : i64[4] @duplicable\n"
      "s = f(x, m)\n"
      "d = f(s)\n"
      "e = add(s, d, m)\n"
      "h = f(e)\n");
  EXPECT_THAT(single_tensor_cuts(g, graph_order(g)), ElementsAre(1, 3));
}

TEST(Cuts, DoNotPartColocatedOperators) {
  const Graph g =
      parse_graph("x = input()\na = f(x) @colocate=0\nc = f(a)\nd = f(c) @colocate=0\ne = f(d)\n");
  EXPECT_THAT(single_tensor_cuts(g, graph_order(g)), ElementsAre(2));
}

TEST(Cuts, EqualCountingTensorByTensor) {
  for (const Graph& g : many_graphs()) {
    const std::vector<OperatorId> order = depth_first_order(g);
    std::vector<std::size_t> expected;
    for (std::size_t p = 0; p + 1 < order.size(); ++p) {
      const std::set<OperatorId> left(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(p) + 1);
      int tensors = 0;
      for (std::size_t t = 0; t < g.tensors().size(); ++t) {
        const auto producer = g.tensor(TensorId(t)).producer;
        if (!producer || left.count(*producer) == 0 || g.op(*producer).duplicable) continue;
        const auto readers = g.readers(TensorId(t));
        tensors +=
            std::any_of(readers.begin(), readers.end(), [&](OperatorId r) { return left.count(r) == 0; }) ? 1
                                                                                                          : 0;
      }
      bool parted = false;
      for (const OperatorId a : left) {
        for (std::size_t q = p + 1; q < order.size(); ++q) {
          const auto group = g.op(a).colocation;
          parted = parted || (group && group == g.op(order[q]).colocation);
        }
      }
      if (tensors == 1 && !parted) expected.push_back(p);
    }
    ASSERT_EQ(single_tensor_cuts(g, order), expected) << print_graph(g);
  }
}

// ---- Colocation

TEST(Contraction, AConvexNodeHoldsWhatLiesBetweenItsOperators) {
  const Graph g =
      parse_graph("x = input()\na = f(x) @colocate=0\nc = f(a)\nd = f(c) @colocate=0\ne = f(x)\n");
  const std::vector<OperatorId> all = graph_order(g);
  const Contraction convex = contract_colocation(g, all);
  ASSERT_EQ(convex.nodes.size(), 2U);
  EXPECT_THAT(operator_names(g, convex.nodes[0]), ElementsAre("a", "c", "d"));
  const Contraction plain = contract_colocation(g, all, {.convex = false});
  ASSERT_EQ(plain.nodes.size(), 3U);
  EXPECT_THAT(operator_names(g, plain.nodes[0]), ElementsAre("a", "d"));
  EXPECT_THAT(plain.successors[0], ElementsAre(1));
  EXPECT_THAT(plain.predecessors[0], ElementsAre(1)) << "a cycle, which placements may have";
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

// ---- Series and parallel parts

TEST(Decompose, TakesThePictureApart) {
  const Graph g = picture();
  EXPECT_EQ(text(g, decompose(g, backbone(g))), "serial a\nbranches b1 b2 | c\nserial d e\n");
}

TEST(Decompose, TowersStandBeforeTheFirstArticulationPoint) {
  const Graph g = parse_graph(
      "x = input()\ny = input()\n"
      "img = f(x)\nimg2 = f(img)\ntxt = f(y)\n"
      "sims = g(img2, txt)\nloss = mean(sims)\n");
  EXPECT_EQ(text(g, decompose(g, backbone(g))), "branches img img2 | txt\nserial sims loss\n");
}

TEST(Decompose, AResidualBlockIsOneBranchBesideADirectEdge) {
  const Graph g = parse_graph("x = input()\na = f(x)\nh = f(a)\nh2 = f(h)\ny = add(a, h2)\n");
  const std::vector<Segment> segments = decompose(g, backbone(g));
  EXPECT_EQ(text(g, segments), "serial a\nbranches h h2\nserial y\n");
  EXPECT_EQ(text(g, decompose(g, segments[1].branches[0])), "serial h h2\n");
}

TEST(Decompose, ATangleHasNoArticulationPoint) {
  // Two rows of two, each reading both of the row before.
  const Graph g = parse_graph("x = input()\na = f(x)\nc = f(x)\nd = g(a, c)\ne = g(a, c)\n");
  EXPECT_EQ(text(g, decompose(g, backbone(g))), "tangle a c d e\n");
}

TEST(Decompose, ColocatedOperatorsAreOneBranch) {
  const Graph g = parse_graph(
      "x = input()\na = f(x)\nc = f(a) @colocate=0\nd = f(a) @colocate=0\nh = f(a)\ne = g(c, d, h)\n");
  EXPECT_EQ(text(g, decompose(g, backbone(g))), "serial a\nbranches c d | h\nserial e\n");
}

TEST(Decompose, DuplicablesAndSideOperatorsDoNotCount) {
  const Graph g = parse_graph(
      "x = input()\nk = constant() : i64[4]\n"
      "m = mask(k) : i64[4] @duplicable\n"
      "a = f(x, m)\n"
      "accuracy = f(a, m)\n"
      "h = f(a)\n"
      "loss = mean(h, m)\n");
  EXPECT_EQ(text(g, decompose(g, backbone(g))), "serial a h loss\n") << "m leads to all, accuracy to nothing";
}

TEST(Decompose, EqualsItsDefinition) {
  for (const Graph& g : many_graphs()) {
    const std::vector<OperatorId> all = backbone(g);
    const Contraction c = contract_colocation(g, all);
    const std::size_t m = c.nodes.size();
    const Reach reach = all_paths(m, [&](std::size_t i, std::size_t j) {
      return std::find(c.successors[i].begin(), c.successors[i].end(), j) != c.successors[i].end();
    });
    const std::vector<Segment> segments = decompose(g, all);

    // Without an articulation point, no path leads from any source to any sink.
    const auto articulates = [&](std::size_t v) {
      const Reach without = all_paths(m, [&](std::size_t i, std::size_t j) {
        return i != v && j != v &&
               std::find(c.successors[i].begin(), c.successors[i].end(), j) != c.successors[i].end();
      });
      for (std::size_t i = 0; i < m; ++i) {
        for (std::size_t j = 0; j < m; ++j) {
          const bool ends = i != v && j != v && c.predecessors[i].empty() && c.successors[j].empty();
          if (ends && without[i][j] != 0) return false;
        }
      }
      return true;
    };
    std::vector<std::size_t> segment_of(m, 0);
    std::vector<std::size_t> branch_of(m, 0);
    std::size_t seen = 0;
    for (std::size_t s = 0; s < segments.size(); ++s) {
      ASSERT_TRUE(s == 0 || segments[s].kind != segments[s - 1].kind) << "segments alternate";
      for (std::size_t branch = 0; branch < segments[s].branches.size(); ++branch) {
        for (const OperatorId id : segments[s].branches[branch]) {
          segment_of[*c.node_of[id.index()]] = s;
          branch_of[*c.node_of[id.index()]] = branch;
          ++seen;
        }
      }
    }
    ASSERT_EQ(seen, all.size()) << "every operator stands in one segment";
    for (std::size_t v = 0; v < m; ++v) {
      for (std::size_t w = 0; w < m; ++w) {
        if (segment_of[v] < segment_of[w]) {
          ASSERT_EQ(reach[w][v], 0) << print_graph(g);
          const bool serial = segments[segment_of[v]].kind == SegmentKind::kSerial ||
                              segments[segment_of[w]].kind == SegmentKind::kSerial;
          ASSERT_TRUE(!serial || reach[v][w] != 0) << "an articulation point leads to all that is behind it";
        }
        if (segment_of[v] == segment_of[w] && branch_of[v] != branch_of[w]) {
          ASSERT_TRUE(reach[v][w] == 0 && reach[w][v] == 0) << "branches are independent\n" << print_graph(g);
        }
      }
      ASSERT_EQ(segments[segment_of[v]].kind == SegmentKind::kSerial, articulates(v)) << print_graph(g);
    }
    // Branches are connected: decomposing one alone gives no second component without an articulation point.
    for (const Segment& segment : segments) {
      for (const auto& branch : segment.branches) {
        const std::vector<Segment> inner = decompose(g, branch);
        ASSERT_FALSE(inner.size() == 1 && inner[0].branches.size() > 1) << print_graph(g);
      }
    }
  }
}

TEST(Decompose, ReachesEveryOperatorOfASeriesParallelGraph) {
  Rng rng(9);
  for (int round = 0; round < 100; ++round) {
    const Graph g = testing::random_graph(rng, {.operators = 20,
                                                .shape = testing::GraphShape::kSeriesParallel,
                                                .duplicables = false,
                                                .several_outputs = false});
    const std::function<std::size_t(std::span<const OperatorId>)> serial_inside =
        [&](std::span<const OperatorId> set) {
          std::size_t count = 0;
          for (const Segment& segment : decompose(g, set)) {
            for (const auto& branch : segment.branches) {
              if (segment.kind == SegmentKind::kSerial) count += branch.size();
              if (segment.kind == SegmentKind::kBranches) count += serial_inside(branch);
            }
          }
          return count;
        };
    ASSERT_EQ(serial_inside(backbone(g)), backbone(g).size()) << print_graph(g);
  }
}

// ---- Attaching what was left out

TEST(AttachRemaining, DuplicablesAreCopiedAndSideOperatorsJoinTheirReads) {
  const Graph g = parse_graph(
      "x = input()\nk = constant() : i64[4]\n"
      "m = mask(k) : i64[4] @duplicable\n"
      "m2 = mask(m) : i64[4] @duplicable\n"
      "unread = mask(k) : i64[4] @duplicable\n"
      "a = f(x, m)\n"
      "accuracy = f(a, m2)\n"
      "h = f(a)\n"
      "loss = mean(h, m2)\n");
  const auto sets = attach_remaining(g, {ids(g, {"a"}), ids(g, {"h"}), ids(g, {"loss"})});
  EXPECT_THAT(operator_names(g, sets[0]), ElementsAre("m", "m2", "a", "accuracy"));
  EXPECT_THAT(operator_names(g, sets[1]), ElementsAre("h"));
  EXPECT_THAT(operator_names(g, sets[2]), ElementsAre("m", "m2", "unread", "loss"));
}

TEST(AttachRemaining, KeepsTheOrderOfSetsLegal) {
  Rng rng(10);
  for (const Graph& g : many_graphs()) {
    // The backbone's nodes, dealt to runs.
    const Contraction c = contract_colocation(g, backbone(g));
    std::vector<std::vector<OperatorId>> sets;
    for (const auto& node : c.nodes) {
      if (sets.empty() || rng.below(3) == 0) sets.emplace_back();
      sets.back().insert(sets.back().end(), node.begin(), node.end());
    }
    if (sets.empty()) continue;
    sets = attach_remaining(g, std::move(sets));
    std::map<OperatorId, std::vector<std::size_t>> homes;
    for (std::size_t s = 0; s < sets.size(); ++s) {
      ASSERT_TRUE(std::is_sorted(sets[s].begin(), sets[s].end()));
      for (const OperatorId id : sets[s]) homes[id].push_back(s);
    }
    std::map<std::uint32_t, std::size_t> home_of_group;
    ASSERT_EQ(homes.size(), g.operators().size()) << "every operator stands somewhere";
    for (const auto& [id, own] : homes) {
      if (g.op(id).duplicable) continue;
      ASSERT_EQ(own.size(), 1U);
      if (const auto group = g.op(id).colocation) {
        ASSERT_EQ(home_of_group.try_emplace(*group, own[0]).first->second, own[0]) << print_graph(g);
      }
    }
    for (const auto& [id, own] : homes) {
      for (const OperatorId p : g.predecessors(id)) {
        const auto& before = homes[p];
        for (const std::size_t s : own) {
          ASSERT_TRUE(g.op(p).duplicable ? std::find(before.begin(), before.end(), s) != before.end()
                                         : before[0] <= s)
              << print_graph(g);
        }
      }
    }
  }
}

TEST(Algorithms, TakeADeepGraphWithoutRecursion) {
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
  EXPECT_THAT(single_tensor_cuts(g, depth_first_order(g)), IsEmpty());
}

}  // namespace
}  // namespace espalier
