#include "espalier/graph/orders.h"

#include <algorithm>
#include <array>
#include <queue>
#include <string>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/base/shuffle.h"
#include "espalier/graph/algorithms.h"

namespace espalier {
namespace {

constexpr std::array<TraversalOrder, 11> kOrders{TraversalOrder::kAlpha,
                                                 TraversalOrder::kTopoLifo,
                                                 TraversalOrder::kTopoGenerations,
                                                 TraversalOrder::kReversedTopo,
                                                 TraversalOrder::kDfsPreorder,
                                                 TraversalOrder::kDfsPostorder,
                                                 TraversalOrder::kBfs,
                                                 TraversalOrder::kLexicoTopo,
                                                 TraversalOrder::kRandom,
                                                 TraversalOrder::kRandomPerEpisode,
                                                 TraversalOrder::kInTurn};
constexpr std::array<std::string_view, 11> kNames{
    "alpha", "topo_lifo",   "topo_generations", "reversed_topo",      "dfs_preorder", "dfs_postorder",
    "bfs",   "lexico_topo", "random",           "random_per_episode", "in_turn"};

constexpr std::array kTurns{
    TraversalOrder::kTopoGenerations, TraversalOrder::kAlpha,        TraversalOrder::kTopoLifo,
    TraversalOrder::kReversedTopo,    TraversalOrder::kBfs,          TraversalOrder::kDfsPreorder,
    TraversalOrder::kLexicoTopo,      TraversalOrder::kDfsPostorder, TraversalOrder::kRandomPerEpisode};

using Order = std::vector<OperatorId>;

const std::string& name_of(const Graph& graph, OperatorId id) {
  return graph.op(id).name;
}

Order by_name(const Graph& graph, Order operators) {  // names are unique
  std::sort(operators.begin(), operators.end(),
            [&](OperatorId a, OperatorId b) { return name_of(graph, a) < name_of(graph, b); });
  return operators;
}

Order sources(const Graph& graph) {
  Order result;
  for (const OperatorId id : graph_order(graph)) {
    if (graph.predecessors(id).empty()) result.push_back(id);
  }
  return result;
}

// Kahn's algorithm (CACM'62); `Ready` says which of the operators whose predecessors were all taken is next.
template <class Ready>
Order kahn(const Graph& graph, Ready ready) {
  std::vector<std::size_t> missing;
  for (const OperatorId id : graph_order(graph)) missing.push_back(graph.predecessors(id).size());
  for (const OperatorId id : sources(graph)) ready.push(id);
  Order order;
  while (!ready.empty()) {
    const OperatorId next = ready.pop();
    order.push_back(next);
    for (const OperatorId s : graph.successors(next)) {
      if (--missing[s.index()] == 0) ready.push(s);
    }
  }
  return order;
}

struct Stack {
  Order items = {};
  bool empty() const { return items.empty(); }
  void push(OperatorId id) { items.push_back(id); }
  OperatorId pop() {
    const OperatorId top = items.back();
    items.pop_back();
    return top;
  }
};

struct Queue {
  Order items = {};
  std::size_t taken = 0;
  bool empty() const { return taken == items.size(); }
  void push(OperatorId id) { items.push_back(id); }
  OperatorId pop() { return items[taken++]; }
};

struct SmallestName {
  explicit SmallestName(const Graph& graph) : rank(graph.operators().size()) {
    const Order sorted = by_name(graph, graph_order(graph));
    for (std::size_t i = 0; i < sorted.size(); ++i) rank[sorted[i].index()] = i;
    of_rank = sorted;
  }
  std::vector<std::size_t> rank;
  Order of_rank;
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> items = {};
  bool empty() const { return items.empty(); }
  void push(OperatorId id) { items.push(rank[id.index()]); }
  OperatorId pop() {
    const std::size_t smallest = items.top();
    items.pop();
    return of_rank[smallest];
  }
};

// A later search need not go through what an earlier one reached: all that lies behind was reached, too.
Order breadth_first_from_each(const Graph& graph) {
  std::vector<char> seen(graph.operators().size(), 0);
  Order order;
  for (const OperatorId source : by_name(graph, sources(graph))) {
    std::size_t next = order.size();
    order.push_back(source);
    seen[source.index()] = 1;
    for (; next < order.size(); ++next) {
      for (const OperatorId s : graph.successors(order[next])) {
        if (std::exchange(seen[s.index()], char{1}) == 0) order.push_back(s);
      }
    }
  }
  return order;
}

Order shuffled(Order order, std::uint64_t key) {
  Rng rng(key);
  shuffle(std::span(order), rng);
  return order;
}

Order reversed(Order order) {
  std::reverse(order.begin(), order.end());
  return order;
}

}  // namespace

std::span<const TraversalOrder> traversal_orders() {
  return kOrders;
}

std::string_view to_text(TraversalOrder order) {
  return kNames[static_cast<std::size_t>(order)];
}

std::optional<TraversalOrder> parse_traversal_order(std::string_view text) {
  for (const TraversalOrder order : kOrders) {
    if (to_text(order) == text) return order;
  }
  return std::nullopt;
}

bool changes_by_episode(TraversalOrder order) {
  return order == TraversalOrder::kRandomPerEpisode || order == TraversalOrder::kInTurn;
}

std::vector<OperatorId> depth_first_walk(const Graph& graph, std::span<const OperatorId> starts, Along along,
                                         Emit emit) {
  struct Entered {
    OperatorId op;
    std::size_t next = 0;  // of its neighbours
  };
  const auto neighbours = [&](OperatorId id) {
    return along == Along::kSuccessors ? graph.successors(id) : graph.predecessors(id);
  };
  std::vector<char> seen(graph.operators().size(), 0);
  Order order;
  std::vector<Entered> path;
  const auto enter = [&](OperatorId id) {
    if (std::exchange(seen[id.index()], char{1}) != 0) return;
    if (emit == Emit::kOnEntry) order.push_back(id);
    path.push_back({id});
  };
  for (const OperatorId start : starts) {
    enter(start);
    while (!path.empty()) {
      Entered& top = path.back();
      const auto others = neighbours(top.op);
      if (top.next < others.size()) {
        enter(others[top.next++]);
      } else {
        if (emit == Emit::kOnExit) order.push_back(top.op);
        path.pop_back();
      }
    }
  }
  return order;
}

std::vector<OperatorId> traversal_order(const Graph& graph, TraversalOrder order, OrderDraw draw) {
  switch (order) {
    case TraversalOrder::kAlpha:
      return by_name(graph, graph_order(graph));
    case TraversalOrder::kTopoLifo:
      return kahn(graph, Stack());
    case TraversalOrder::kTopoGenerations:
      return kahn(graph, Queue());
    case TraversalOrder::kReversedTopo:
      return reversed(kahn(graph, Stack()));
    case TraversalOrder::kDfsPreorder:
      return depth_first_walk(graph, graph_order(graph), Along::kSuccessors, Emit::kOnEntry);
    case TraversalOrder::kDfsPostorder:
      return depth_first_walk(graph, graph_order(graph), Along::kSuccessors, Emit::kOnExit);
    case TraversalOrder::kBfs:
      return breadth_first_from_each(graph);
    case TraversalOrder::kLexicoTopo:
      return kahn(graph, SmallestName(graph));
    case TraversalOrder::kRandom:
      return shuffled(graph_order(graph), stream_key(draw.seed, {0}));
    case TraversalOrder::kRandomPerEpisode:
      return shuffled(graph_order(graph), stream_key(draw.seed, {1, draw.episode}));
    case TraversalOrder::kInTurn:
      return traversal_order(graph, kTurns[draw.episode % kTurns.size()], draw);
  }
  ESP_CHECK(false, static_cast<int>(order));
  return {};
}

}  // namespace espalier
