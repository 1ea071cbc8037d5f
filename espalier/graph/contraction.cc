// Colocation groups contracted, and the operators that lead to the loss.

#include "espalier/graph/contraction.h"

#include <algorithm>
#include <map>
#include <queue>

#include "espalier/base/check.h"

namespace espalier {
namespace {

using Lists = std::vector<std::vector<std::uint32_t>>;

void sort_unique(Lists& lists) {
  for (auto& list : lists) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
}

// Strongly connected components (Tarjan, SICOMP'72), without recursion: graphs are deep.
std::vector<std::uint32_t> strong_components(const Lists& successors) {
  const std::size_t n = successors.size();
  std::vector<std::uint32_t> component(n, 0);
  std::vector<std::uint32_t> number(n, 0);  // 0: not seen
  std::vector<std::uint32_t> low(n, 0);
  std::vector<char> open(n, 0);
  std::vector<std::uint32_t> stack;
  std::uint32_t seen = 0;
  std::uint32_t components = 0;
  struct Frame {
    std::uint32_t node;
    std::size_t next;
  };
  std::vector<Frame> frames;
  const auto enter = [&](std::uint32_t v) {
    number[v] = low[v] = ++seen;
    open[v] = 1;
    stack.push_back(v);
    frames.push_back({v, 0});
  };
  for (std::uint32_t root = 0; root < n; ++root) {
    if (number[root] != 0) continue;
    enter(root);
    while (!frames.empty()) {
      const std::uint32_t v = frames.back().node;
      if (frames.back().next < successors[v].size()) {
        const std::uint32_t w = successors[v][frames.back().next++];
        if (number[w] == 0) {
          enter(w);
        } else if (open[w] != 0) {
          low[v] = std::min(low[v], number[w]);
        }
        continue;
      }
      frames.pop_back();
      if (!frames.empty()) low[frames.back().node] = std::min(low[frames.back().node], low[v]);
      if (low[v] != number[v]) continue;
      while (true) {
        const std::uint32_t w = stack.back();
        stack.pop_back();
        open[w] = 0;
        component[w] = components;
        if (w == v) break;
      }
      ++components;
    }
  }
  return component;
}

// Renumbers labels (by operator, of those in `subset`) by first operator.
std::vector<std::vector<OperatorId>> members_by_first(std::span<const OperatorId> subset,
                                                      const std::vector<std::uint32_t>& label) {
  std::map<std::uint32_t, std::size_t> place;
  std::vector<std::vector<OperatorId>> members;
  for (std::size_t i = 0; i < subset.size(); ++i) {
    const auto [found, is_new] = place.try_emplace(label[i], members.size());
    if (is_new) members.emplace_back();
    members[found->second].push_back(subset[i]);
  }
  return members;
}

Contraction with_edges(const Graph& graph, std::vector<std::vector<OperatorId>> members) {
  Contraction result;
  result.node_of.resize(graph.operators().size());
  for (std::size_t node = 0; node < members.size(); ++node) {
    for (const OperatorId id : members[node]) result.node_of[id.index()] = narrow(node);
  }
  result.predecessors.resize(members.size());
  result.successors.resize(members.size());
  for (std::size_t node = 0; node < members.size(); ++node) {
    for (const OperatorId id : members[node]) {
      for (const OperatorId s : graph.successors(id)) {
        const auto other = result.node_of[s.index()];
        if (!other || *other == node) continue;
        result.successors[node].push_back(*other);
        result.predecessors[*other].push_back(narrow(node));
      }
    }
  }
  sort_unique(result.successors);
  sort_unique(result.predecessors);
  result.nodes = std::move(members);
  return result;
}

// A legal order of an acyclic contraction: always the ready node with the smallest number.
std::vector<std::uint32_t> legal_order(const Contraction& c) {
  std::vector<std::size_t> missing(c.nodes.size());
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ready;
  for (std::uint32_t node = 0; node < c.nodes.size(); ++node) {
    missing[node] = c.predecessors[node].size();
    if (missing[node] == 0) ready.push(node);
  }
  std::vector<std::uint32_t> order;
  while (!ready.empty()) {
    order.push_back(ready.top());
    ready.pop();
    for (const std::uint32_t s : c.successors[order.back()]) {
      if (--missing[s] == 0) ready.push(s);
    }
  }
  ESP_CHECK(order.size() == c.nodes.size(), order.size());
  return order;
}

}  // namespace

Contraction contract_colocation(const Graph& graph, std::span<const OperatorId> subset) {
  ESP_CHECK(std::is_sorted(subset.begin(), subset.end()));
  std::map<std::uint32_t, std::uint32_t> first_of_group;
  std::vector<std::uint32_t> label(subset.size());
  for (std::size_t i = 0; i < subset.size(); ++i) {
    const auto group = graph.op(subset[i]).colocation;
    label[i] = group ? first_of_group.try_emplace(*group, narrow(i)).first->second : narrow(i);
  }
  Contraction groups = with_edges(graph, members_by_first(subset, label));
  if (groups.nodes.size() == subset.size()) return groups;

  const std::vector<std::uint32_t> component = strong_components(groups.successors);
  for (std::size_t i = 0; i < subset.size(); ++i) label[i] = component[*groups.node_of[subset[i].index()]];
  const Contraction merged = with_edges(graph, members_by_first(subset, label));
  std::vector<std::vector<OperatorId>> ordered;
  for (const std::uint32_t node : legal_order(merged)) ordered.push_back(merged.nodes[node]);
  return with_edges(graph, std::move(ordered));
}

std::vector<OperatorId> backbone(const Graph& graph) {
  const std::size_t n = graph.operators().size();
  std::vector<char> needed(n, graph.loss() ? 0 : 1);
  std::map<std::uint32_t, std::vector<OperatorId>> groups;
  for (std::size_t i = 0; i < n; ++i) {
    if (const auto group = graph.operators()[i].colocation) groups[*group].emplace_back(i);
  }
  std::vector<OperatorId> open;
  const auto need = [&](OperatorId id) {
    if (needed[id.index()] != 0) return;
    needed[id.index()] = 1;
    open.push_back(id);
  };
  if (graph.loss()) {
    if (const auto producer = graph.tensor(*graph.loss()).producer) need(*producer);
  }
  while (!open.empty()) {
    const OperatorId id = open.back();
    open.pop_back();
    for (const OperatorId p : graph.predecessors(id)) need(p);
    const auto group = graph.op(id).colocation;
    if (!group) continue;
    for (const OperatorId other : groups[*group]) need(other);
    groups[*group].clear();
  }
  std::vector<OperatorId> result;
  for (std::size_t i = 0; i < n; ++i) {
    if (needed[i] != 0 && !graph.operators()[i].duplicable) result.emplace_back(i);
  }
  return result;
}

}  // namespace espalier
