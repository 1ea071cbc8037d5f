#include "espalier/planners/given_sets.h"

#include <gmock/gmock.h>

#include <set>

#include "espalier/base/rng.h"
#include "espalier/graph/text.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;

constexpr std::nullopt_t kFree = std::nullopt;

TEST(GivenSets, WhatLiesBetweenASetsOperatorsJoinsIt) {
  const Graph graph = parse_graph(
      "x = input() : f32[b]\na = f(x) : f32[b]\nb = f(a) : f32[b]\nc = f(b) : f32[b]\nd = f(c) : f32[]\n");
  const ClosedSets closed = close_sets(graph, {0, kFree, 0, kFree}, 1);
  EXPECT_THAT(closed.set_of, ElementsAre(0, 0, 0, kFree));
}

TEST(GivenSets, TheRestOfAColocationGroupJoins) {
  const Graph graph = parse_graph(
      "x = input() : f32[b]\na = f(x) : f32[b] @colocate=7\nb = f(x) : f32[b] @colocate=7\n"
      "d = f(a, b) : f32[]\n");
  EXPECT_THAT(close_sets(graph, {0, kFree, kFree}, 1).set_of, ElementsAre(0, 0, kFree));
  const ClosedSets torn = close_sets(graph, {1, 0, kFree}, 2);
  EXPECT_EQ(torn.torn, (TornGroup{OperatorId(1), OperatorId(0), 0, 1}));
}

TEST(GivenSets, SetsThatReadFromEachOtherAreACycle) {
  // a → b → c, a and c in one set, b in the other.
  const Graph graph =
      parse_graph("x = input() : f32[b]\na = f(x) : f32[b]\nb = f(a) : f32[b]\nc = f(b) : f32[b]\n");
  EXPECT_EQ(close_sets(graph, {0, 1, 0}, 2).cycle, (SetCycle{0, 1, OperatorId(0), OperatorId(2)}));
  // Two pairs that cross: no operator has a path back to its own set through the other's operators alone.
  const Graph crossed = parse_graph(
      "x = input() : f32[b]\na = f(x) : f32[b]\nb = f(x) : f32[b]\nc = f(a) : f32[b]\nd = f(b) : f32[b]\n");
  EXPECT_EQ(close_sets(crossed, {0, 1, 1, 0}, 2).cycle, (SetCycle{0, 1, OperatorId(0), OperatorId(3)}));
}

TEST(GivenSets, TheRestJoinsWhatItReadsOrItsFirstReader) {
  // first and last are read by, and read, one set; the sum of two sets beside each other goes on to the head.
  const Graph graph = parse_graph(
      "x = input() : f32[b]\nfirst = f(x) : f32[b]\nimg = f(first) : f32[b]\ntxt = f(x) : f32[b]\n"
      "sum = f(img, txt) : f32[b]\nhead = f(sum) : f32[b]\nlast = f(head) : f32[]\n");
  EXPECT_THAT(join_rest(graph, {kFree, 0, 1, kFree, 2, kFree}, 3), ElementsAre(0, 0, 1, 2, 2, 2));
  EXPECT_THAT(join_rest(graph, {kFree, 0, 1, kFree, kFree, kFree}, 2), ElementsAre(0, 0, 1, 1, 1, 1))
      << "nobody else reads the sum: it joins the last of those it reads";
}

TEST(GivenSets, OfSetsInARowTheLastOneIsJoined) {
  const Graph graph = parse_graph(
      "x = input() : f32[b]\na = f(x) : f32[b]\nb = f(a) : f32[b]\nsum = f(a, b) : f32[b]\nc = f(sum) : "
      "f32[]\n");
  EXPECT_THAT(join_rest(graph, {0, 1, kFree, 2}, 3), ElementsAre(0, 1, 1, 2));
}

TEST(GivenSets, WhatHasNoPartInItJoinsTheLast) {
  const Graph graph =
      parse_graph("x = input() : f32[b]\na = f(x) : f32[b]\naside = f(x) : f32[b]\nb = f(a) : f32[]\n");
  EXPECT_THAT(join_rest(graph, {0, kFree, 1}, 2), ElementsAre(0, 1, 1));
}

// Sets and operators of none as nodes; whether a path leads from one to another, by trying all.
std::vector<std::vector<char>> paths(const Graph& graph, const SetOfOperator& set_of, std::size_t sets) {
  const std::size_t n = sets + set_of.size();
  const auto node = [&](std::size_t i) { return set_of[i] ? *set_of[i] : sets + i; };
  std::vector<std::vector<char>> path(n, std::vector<char>(n, 0));
  for (std::size_t i = 0; i < set_of.size(); ++i) {
    for (const OperatorId p : graph.predecessors(OperatorId(i))) {
      if (node(p.index()) != node(i)) path[node(p.index())][node(i)] = 1;
    }
  }
  for (std::size_t k = 0; k < n; ++k) {
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        if (path[i][k] && path[k][j]) path[i][j] = 1;
      }
    }
  }
  return path;
}

TEST(GivenSets, OnRandomGraphsTheyCloseAndJoinAsTriedByHand) {
  Rng rng(17);
  int cycles = 0, closed_ones = 0, grown = 0, torn = 0;
  for (int trial = 0; trial < 1500; ++trial) {
    const std::size_t n = 3 + rng.below(8), sets = 1 + rng.below(3);
    std::string text = "x = input() : f32[b]\n";
    std::vector<std::string> names{"x"};
    for (std::size_t i = 0; i < n; ++i) {
      const std::string name = "h" + std::to_string(i);
      text += name + " = f(" + names[rng.below(names.size())] + ", " + names[rng.below(names.size())] +
              ") : f32[b]" + (rng.below(6) == 0 ? " @colocate=" + std::to_string(90 + rng.below(2)) : "") +
              "\n";
      names.push_back(name);
    }
    const Graph graph = parse_graph(text);
    SetOfOperator set_of(n);
    std::set<SetIndex> used;
    for (std::size_t i = 0; i < n; ++i) {
      if (rng.below(2) == 0) used.insert(*(set_of[i] = static_cast<SetIndex>(rng.below(sets))));
    }
    if (used.size() < sets) continue;
    const ClosedSets closed = close_sets(graph, set_of, sets);
    // By hand: groups first.
    SetOfOperator grouped = set_of;
    bool apart = false;
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        if (!graph.operators()[i].colocation ||
            graph.operators()[i].colocation != graph.operators()[j].colocation)
          continue;
        if (set_of[i] && set_of[j] && set_of[i] != set_of[j]) apart = true;
        if (set_of[i] && !grouped[j]) grouped[j] = set_of[i];
      }
    }
    ASSERT_EQ(closed.torn.has_value(), apart) << text;
    torn += apart;
    if (apart) continue;
    const auto path = paths(graph, grouped, sets);
    bool cyclic = false;
    for (std::size_t s = 0; s < sets; ++s) {
      for (std::size_t t = 0; t < s; ++t) cyclic |= path[s][t] && path[t][s];
    }
    // A group of no set that leads away and back binds more than paths of operators show.
    const auto loose_group = [&] {
      for (std::size_t i = 0; i < n; ++i) {
        if (graph.operators()[i].colocation && !grouped[i]) return true;
      }
      return false;
    };
    if (!loose_group()) {
      ASSERT_EQ(closed.cycle.has_value(), cyclic) << text;
    }
    if (closed.cycle) {
      ++cycles;
      EXPECT_EQ(grouped[closed.cycle->leaves.index()], closed.cycle->set) << text;
      EXPECT_EQ(grouped[closed.cycle->returns.index()], closed.cycle->set) << text;
      continue;
    }
    ++closed_ones;
    for (std::size_t i = 0; i < n && !loose_group(); ++i) {
      SetOfOperator expected = grouped;
      for (std::size_t s = 0; s < sets && !grouped[i]; ++s) {
        if (path[s][sets + i] && path[sets + i][s]) expected[i] = narrow(s);
      }
      ASSERT_EQ(closed.set_of[i], expected[i]) << text << i;
      grown += closed.set_of[i] != set_of[i];
    }
    // Joined: everything, groups together, nobody moved, no cycle.
    const SetOfOperator joined = join_rest(graph, closed.set_of, sets);
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_TRUE(joined[i].has_value());
      if (closed.set_of[i]) {
        ASSERT_EQ(joined[i], closed.set_of[i]);
      }
      for (std::size_t j = 0; j < n; ++j) {
        const auto group = graph.operators()[i].colocation;
        if (!group || group != graph.operators()[j].colocation) continue;
        ASSERT_EQ(joined[i], joined[j]) << text;
      }
    }
    const auto after = paths(graph, joined, sets);
    for (std::size_t s = 0; s < sets; ++s) {
      for (std::size_t t = 0; t < s; ++t) ASSERT_FALSE(after[s][t] && after[t][s]) << text;
    }
  }
  EXPECT_GT(cycles, 50);
  EXPECT_GT(closed_ones, 150);
  EXPECT_GT(grown, 25);
  EXPECT_GT(torn, 10);
}

}  // namespace
}  // namespace espalier
