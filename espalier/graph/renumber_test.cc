#include "espalier/graph/renumber.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/graph/text.h"
#include "testing/random_graphs.h"

namespace espalier {
namespace {

using ::testing::IsEmpty;

TEST(Renumbered, OperatorsStandInTheOrderAskedForAndTensorsFollow) {
  const Graph graph = parse_graph("x = input()\na = f(x)\nb = g(x)\nc = f(a)\nd = h(c, b)\nreturn d\n");
  const Graph again =
      renumbered(graph, std::vector{OperatorId(1), OperatorId(0), OperatorId(2), OperatorId(3)});
  EXPECT_EQ(again, parse_graph("x = input()\nb = g(x)\na = f(x)\nc = f(a)\nd = h(c, b)\nreturn d\n"));
}

TEST(Renumbered, AnOrderThatReadsWhatIsNotThereYetIsRefused) {
  const Graph graph = parse_graph("x = input()\na = f(x)\nb = g(a)\n");
  EXPECT_THROW(renumbered(graph, std::vector{OperatorId(1), OperatorId(0)}), InternalError);
  EXPECT_THROW(renumbered(graph, std::vector{OperatorId(0), OperatorId(0)}), InternalError);
  EXPECT_THROW(renumbered(graph, std::vector{OperatorId(0)}), InternalError);
}

TEST(Renumbered, ThereAndBackIsTheSameGraph) {
  Rng rng(2);
  for (int trial = 0; trial < 100; ++trial) {
    const Graph graph = testing::random_graph(rng, {.mutations = trial % 2 == 1});
    const std::size_t n = graph.operators().size();
    std::vector<OperatorId> order, back(n);
    std::vector<char> done(n, 0);
    while (order.size() < n) {  // any ready operator
      const OperatorId op(rng.below(n));
      const auto before = graph.predecessors(op);
      const auto is_done = [&](OperatorId each) { return done[each.index()] != 0; };
      if (done[op.index()] || !std::all_of(before.begin(), before.end(), is_done)) continue;
      done[op.index()] = 1;
      order.push_back(op);
    }
    for (std::size_t i = 0; i < n; ++i) back[order[i].index()] = OperatorId(i);
    const Graph there = renumbered(graph, order);
    EXPECT_THAT(check_graph(there.parts()), IsEmpty());
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_EQ(there.op(OperatorId(i)).name, graph.op(order[i]).name);
    }
    std::vector<OperatorId> same(n);
    for (std::size_t i = 0; i < n; ++i) same[i] = OperatorId(i);
    EXPECT_EQ(renumbered(there, back), renumbered(graph, same));
  }
}

}  // namespace
}  // namespace espalier
