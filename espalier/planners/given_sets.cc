#include "espalier/planners/given_sets.h"

#include <algorithm>
#include <limits>
#include <map>
#include <queue>
#include <utility>

#include "espalier/base/check.h"

// Problem. Stages must form a DAG. So a set takes in what lies between its operators, and two sets on one
// cycle cannot both be stages.
//
// Each set is one node, each colocation group outside of them another, each other operator one by itself. The
// strongly connected components of that graph (Tarjan, 1972) say both: one with two sets is a cycle, one with
// a single set is what must join it.
//
// Joining the rest. Let the components stand in a topological order and pos(s) be the place of set s. Each
// operator v gets a set with pos(any set before v) ≤ pos(set of v) ≤ pos(any set behind v): what it reads has
// been dealt with before it, and whatever that joined comes no later than any set behind it. So edges never
// lead from a later set to an earlier one, and no cycle comes of it.

namespace espalier {
namespace {

// Sets, colocation groups and single operators as nodes; sets come first.
class SetGraph {
 public:
  SetGraph(const Graph& graph, const SetOfOperator& set_of, std::size_t sets)
      : sets_(sets), node_of_(graph.operators().size()), successors_(sets) {
    std::map<std::uint32_t, std::uint32_t> group;  // node of a colocation group
    for (std::size_t i = 0; i < node_of_.size(); ++i) {
      if (set_of[i]) node_of_[i] = *set_of[i];
    }
    for (std::size_t i = 0; i < node_of_.size(); ++i) {
      const Operator& op = graph.operators()[i];
      if (op.duplicable || node_of_[i]) continue;
      if (op.colocation) {
        const auto [it, fresh] = group.emplace(*op.colocation, narrow(successors_.size()));
        if (fresh) successors_.emplace_back();
        node_of_[i] = it->second;
      } else {
        node_of_[i] = narrow(successors_.size());
        successors_.emplace_back();
      }
    }
    for (std::size_t i = 0; i < node_of_.size(); ++i) {
      if (!node_of_[i]) continue;
      for (const OperatorId p : graph.predecessors(OperatorId(i))) {
        const auto from = node_of_[p.index()];
        if (from && *from != *node_of_[i]) successors_[*from].push_back({*node_of_[i], p, OperatorId(i)});
      }
    }
    find_components();
  }

  struct Edge {
    std::uint32_t to = 0;
    OperatorId producer, reader;
  };

  std::size_t sets() const { return sets_; }
  std::size_t nodes() const { return successors_.size(); }
  std::optional<std::uint32_t> node_of(OperatorId op) const { return node_of_[op.index()]; }
  const std::vector<Edge>& successors(std::uint32_t node) const { return successors_[node]; }
  // Numbered so that edges lead to smaller ones.
  std::uint32_t component(std::uint32_t node) const { return component_[node]; }
  std::size_t components() const { return components_; }

  std::optional<SetCycle> cycle() const {
    std::vector<std::optional<SetIndex>> first(components_);
    std::optional<std::pair<SetIndex, SetIndex>> least;
    for (SetIndex s = 0; s < sets_; ++s) {
      auto& holder = first[component_[s]];
      if (!holder) {
        holder = s;
      } else if (const std::pair found(*holder, s); !least || found < *least) {
        least = found;
      }
    }
    if (!least) return std::nullopt;
    const auto [set, through] = *least;
    return SetCycle{set, through, path(set, through).front().producer, path(through, set).back().reader};
  }

 private:
  // A shortest path within their component.
  std::vector<Edge> path(std::uint32_t from, std::uint32_t to) const {
    std::map<std::uint32_t, std::pair<std::uint32_t, Edge>> reached;  // from which node, by which edge
    std::vector<std::uint32_t> open{from};
    for (std::size_t next = 0; next < open.size() && !reached.contains(to); ++next) {
      for (const Edge& edge : successors_[open[next]]) {
        if (edge.to == from || component_[edge.to] != component_[from]) continue;
        if (reached.try_emplace(edge.to, open[next], edge).second) open.push_back(edge.to);
      }
    }
    ESP_CHECK(reached.contains(to), from, to);
    std::vector<Edge> edges;
    for (std::uint32_t at = to; at != from; at = reached.at(at).first) edges.push_back(reached.at(at).second);
    std::reverse(edges.begin(), edges.end());
    return edges;
  }

  // Tarjan's algorithm, without recursion.
  void find_components() {
    constexpr std::uint32_t kUnseen = std::numeric_limits<std::uint32_t>::max();
    struct Call {
      std::uint32_t node = 0;
      std::size_t next = 0;
    };
    std::vector<std::uint32_t> order(nodes(), kUnseen), low(nodes(), 0), stack;
    std::vector<char> on_stack(nodes(), 0);
    component_.assign(nodes(), 0);
    std::uint32_t seen = 0;
    for (std::uint32_t root = 0; root < nodes(); ++root) {
      if (order[root] != kUnseen) continue;
      std::vector<Call> calls{{root, 0}};
      while (!calls.empty()) {
        Call& call = calls.back();
        const std::uint32_t n = call.node;
        if (call.next == 0 && order[n] == kUnseen) {
          order[n] = low[n] = seen++;
          stack.push_back(n);
          on_stack[n] = 1;
        }
        if (call.next < successors_[n].size()) {
          const std::uint32_t to = successors_[n][call.next++].to;
          if (order[to] == kUnseen) {
            calls.push_back({to, 0});
          } else if (on_stack[to]) {
            low[n] = std::min(low[n], order[to]);
          }
          continue;
        }
        if (low[n] == order[n]) {
          std::uint32_t member = 0;
          do {
            member = stack.back();
            stack.pop_back();
            on_stack[member] = 0;
            component_[member] = narrow(components_);
          } while (member != n);
          ++components_;
        }
        calls.pop_back();
        if (!calls.empty()) low[calls.back().node] = std::min(low[calls.back().node], low[n]);
      }
    }
  }

  std::size_t sets_;
  std::vector<std::optional<std::uint32_t>> node_of_;  // by operator
  std::vector<std::vector<Edge>> successors_;
  std::vector<std::uint32_t> component_;
  std::size_t components_ = 0;
};

// The other operators of a colocation group join the set of one of them.
std::optional<TornGroup> join_groups(const Graph& graph, SetOfOperator& set_of) {
  std::map<std::uint32_t, OperatorId> first;  // operator in a set, by group
  std::optional<TornGroup> torn;
  for (std::size_t i = 0; i < set_of.size() && !torn; ++i) {
    const auto group = graph.operators()[i].colocation;
    if (!group || !set_of[i]) continue;
    const auto [it, fresh] = first.emplace(*group, OperatorId(i));
    if (fresh || set_of[it->second.index()] == set_of[i]) continue;
    torn = {it->second, OperatorId(i), *set_of[it->second.index()], *set_of[i]};
    if (torn->second_set < torn->first_set) {
      std::swap(torn->first, torn->second);
      std::swap(torn->first_set, torn->second_set);
    }
  }
  for (std::size_t i = 0; i < set_of.size() && !torn; ++i) {
    const auto group = graph.operators()[i].colocation;
    if (!group || set_of[i] || graph.operators()[i].duplicable) continue;
    if (const auto it = first.find(*group); it != first.end()) set_of[i] = set_of[it->second.index()];
  }
  return torn;
}

// Components of a SetGraph without cycles of sets, each of which joins a set.
class Joiner {
 public:
  explicit Joiner(const SetGraph& graph)
      : graph_(graph),
        words_(graph.sets() / 64 + 1),
        set_(graph.components()),
        successors_(graph.components()),
        predecessors_(graph.components()),
        place_(graph.sets()),
        before_(graph.components(), std::vector<std::uint64_t>(words_)),
        next_(graph.components()) {
    for (SetIndex s = 0; s < graph.sets(); ++s) set_[graph.component(s)] = s;
    for (std::uint32_t n = 0; n < graph.nodes(); ++n) {
      for (const SetGraph::Edge& edge : graph.successors(n)) {
        const std::uint32_t from = graph.component(n), to = graph.component(edge.to);
        if (from == to) continue;
        successors_[from].push_back(to);
        predecessors_[to].push_back(from);
      }
    }
  }

  // By component.
  std::vector<SetIndex> join() {
    const std::vector<std::uint32_t> order = topological();
    SetIndex last = 0;
    std::uint32_t places = 0;
    for (const std::uint32_t c : order) {
      if (set_[c]) place_[last = *set_[c]] = places++;
    }
    for (const std::uint32_t c : order) {
      for (const std::uint32_t reader : successors_[c]) {
        for (std::size_t w = 0; w < words_; ++w) before_[reader][w] |= before_[c][w];
        if (set_[c]) before_[reader][*set_[c] / 64] |= std::uint64_t{1} << *set_[c] % 64;
      }
    }
    for (std::size_t i = order.size(); i-- > 0;) {
      for (const std::uint32_t reader : successors_[order[i]]) {
        const auto found = set_[reader] ? set_[reader] : next_[reader];
        auto& next = next_[order[i]];
        if (found && (!next || place_[*found] < place_[*next])) next = found;
      }
    }
    std::vector<SetIndex> joined(set_.size());
    for (const std::uint32_t c : order) joined[c] = set_[c] ? *set_[c] : choose(c, joined, last);
    return joined;
  }

 private:
  SetIndex choose(std::uint32_t component, const std::vector<SetIndex>& joined, SetIndex last_of_all) const {
    std::optional<SetIndex> last;
    for (const std::uint32_t p : predecessors_[component]) {
      if (!last || place_[joined[p]] > place_[*last]) last = joined[p];
    }
    if (!last) return next_[component].value_or(last_of_all);
    const std::vector<std::uint64_t>& before = before_[graph_.component(*last)];
    const bool in_a_row =
        std::all_of(predecessors_[component].begin(), predecessors_[component].end(), [&](std::uint32_t p) {
          return joined[p] == *last || (before[joined[p] / 64] >> joined[p] % 64 & 1) != 0;
        });
    return in_a_row ? *last : next_[component].value_or(*last);
  }

  // Of what is free: components without a set first, then the smallest set.
  std::vector<std::uint32_t> topological() const {
    using Key = std::pair<std::uint64_t, std::uint32_t>;
    const auto key = [&](std::uint32_t c) { return Key(set_[c] ? std::uint64_t{*set_[c]} + 1 : 0, c); };
    std::priority_queue<Key, std::vector<Key>, std::greater<>> free;
    std::vector<std::size_t> missing(set_.size());
    for (std::uint32_t c = 0; c < set_.size(); ++c) {
      missing[c] = predecessors_[c].size();
      if (missing[c] == 0) free.push(key(c));
    }
    std::vector<std::uint32_t> order;
    while (!free.empty()) {
      order.push_back(free.top().second);
      free.pop();
      for (const std::uint32_t reader : successors_[order.back()]) {
        if (--missing[reader] == 0) free.push(key(reader));
      }
    }
    ESP_CHECK(order.size() == set_.size(), order.size());
    return order;
  }

  const SetGraph& graph_;
  std::size_t words_;
  std::vector<std::optional<SetIndex>> set_;  // by component, as the ones below
  std::vector<std::vector<std::uint32_t>> successors_, predecessors_;
  std::vector<std::uint32_t> place_;                // by set
  std::vector<std::vector<std::uint64_t>> before_;  // sets that lead to it
  std::vector<std::optional<SetIndex>> next_;       // the first set that it leads to
};

}  // namespace

ClosedSets close_sets(const Graph& graph, SetOfOperator set_of, std::size_t sets) {
  for (std::size_t i = 0; i < set_of.size(); ++i) {
    if (graph.operators()[i].duplicable) set_of[i].reset();
  }
  ClosedSets closed;
  closed.torn = join_groups(graph, set_of);
  if (closed.torn) return closed;
  const SetGraph nodes(graph, set_of, sets);
  closed.cycle = nodes.cycle();
  if (closed.cycle) return closed;
  std::vector<std::optional<SetIndex>> of_component(nodes.components());
  for (SetIndex s = 0; s < sets; ++s) of_component[nodes.component(s)] = s;
  for (std::size_t i = 0; i < set_of.size(); ++i) {
    if (const auto node = nodes.node_of(OperatorId(i))) set_of[i] = of_component[nodes.component(*node)];
  }
  closed.set_of = std::move(set_of);
  return closed;
}

SetOfOperator join_rest(const Graph& graph, const SetOfOperator& set_of, std::size_t sets) {
  const SetGraph nodes(graph, set_of, sets);
  ESP_CHECK(!nodes.cycle());
  const std::vector<SetIndex> joined = Joiner(nodes).join();
  SetOfOperator result(set_of.size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (const auto node = nodes.node_of(OperatorId(i))) result[i] = joined[nodes.component(*node)];
  }
  return result;
}

}  // namespace espalier
