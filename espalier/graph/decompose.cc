// Colocation groups contracted, and a set of operators taken apart into series and parallel parts.
//
// Articulation points. Number the contracted nodes 0 … m-1 in any legal order and add a source before and a
// sink behind them. Node v lies on every path from source to sink exactly if no edge u → w has u < v < w: a
// path that misses v must jump over it somewhere, and an edge that jumps over it can be completed to such a
// path. So one sweep with the farthest successor so far finds them all, in O(nodes + edges), whatever the
// order. Between two neighbours among them, connected components are the branches.
//
// Known bad case: graphs in which components are joined by many cross edges (NASNet cells) are one tangle.

#include <algorithm>
#include <map>
#include <numeric>
#include <queue>

#include "espalier/base/check.h"
#include "espalier/graph/algorithms.h"

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

Contraction contract_colocation(const Graph& graph, std::span<const OperatorId> subset,
                                const ContractOptions& options) {
  ESP_CHECK(std::is_sorted(subset.begin(), subset.end()));
  std::map<std::uint32_t, std::uint32_t> first_of_group;
  std::vector<std::uint32_t> label(subset.size());
  for (std::size_t i = 0; i < subset.size(); ++i) {
    const auto group = graph.op(subset[i]).colocation;
    label[i] = group ? first_of_group.try_emplace(*group, narrow(i)).first->second : narrow(i);
  }
  Contraction groups = with_edges(graph, members_by_first(subset, label));
  if (!options.convex || groups.nodes.size() == subset.size()) return groups;

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

namespace {

// Nodes that every path passes: see the head of this file.
std::vector<std::uint32_t> articulation_points(const Contraction& c) {
  const std::size_t m = c.nodes.size();
  std::size_t last_source = 0;
  for (std::size_t v = 0; v < m; ++v) {
    if (c.predecessors[v].empty()) last_source = v;
  }
  std::vector<std::uint32_t> points;
  std::size_t farthest = 0;  // successor of the nodes before v; m stands for the sink
  for (std::size_t v = 0; v < m; ++v) {
    if (farthest <= v && last_source <= v) points.push_back(narrow(v));
    farthest = std::max<std::size_t>(farthest, c.successors[v].empty() ? m : c.successors[v].back());
  }
  return points;
}

std::vector<OperatorId> operators_of(const Contraction& c, std::span<const std::uint32_t> nodes) {
  std::vector<OperatorId> result;
  for (const std::uint32_t node : nodes)
    result.insert(result.end(), c.nodes[node].begin(), c.nodes[node].end());
  std::sort(result.begin(), result.end());
  return result;
}

// Connected components of the nodes first … last-1, edges taken both ways.
std::vector<std::vector<OperatorId>> components(const Contraction& c, std::size_t first, std::size_t last) {
  std::vector<char> seen(last - first, 0);
  std::vector<std::vector<OperatorId>> result;
  for (std::size_t start = first; start < last; ++start) {
    if (seen[start - first] != 0) continue;
    std::vector<std::uint32_t> nodes{narrow(start)};
    seen[start - first] = 1;
    for (std::size_t next = 0; next < nodes.size(); ++next) {
      for (const auto* lists : {&c.predecessors, &c.successors}) {
        for (const std::uint32_t other : (*lists)[nodes[next]]) {
          if (other < first || other >= last || seen[other - first] != 0) continue;
          seen[other - first] = 1;
          nodes.push_back(other);
        }
      }
    }
    result.push_back(operators_of(c, nodes));
  }
  std::sort(result.begin(), result.end());
  return result;
}

}  // namespace

std::vector<Segment> decompose(const Graph& graph, std::span<const OperatorId> set) {
  const Contraction c = contract_colocation(graph, set);
  const std::vector<std::uint32_t> points = articulation_points(c);
  std::vector<Segment> segments;
  std::vector<std::uint32_t> run;
  const auto end_run = [&] {
    if (!run.empty()) segments.push_back({SegmentKind::kSerial, {operators_of(c, run)}});
    run.clear();
  };
  std::size_t next = 0;  // the first node that is in no segment yet
  const auto branches_up_to = [&](std::size_t end) {
    if (next == end) return;
    end_run();
    segments.push_back({SegmentKind::kBranches, components(c, next, end)});
  };
  for (const std::uint32_t point : points) {
    branches_up_to(point);
    run.push_back(point);
    next = point + 1;
  }
  branches_up_to(c.nodes.size());
  end_run();
  if (points.empty() && segments.size() == 1 && segments[0].branches.size() == 1) {
    segments[0].kind = SegmentKind::kTangle;
  }
  return segments;
}

std::vector<std::vector<OperatorId>> attach_remaining(const Graph& graph,
                                                      std::vector<std::vector<OperatorId>> sets) {
  ESP_CHECK(!sets.empty());
  const std::size_t n = graph.operators().size();
  std::vector<std::optional<std::uint32_t>> set_of(n);
  for (std::size_t s = 0; s < sets.size(); ++s) {
    for (const OperatorId id : sets[s]) {
      ESP_CHECK(!set_of[id.index()] && !graph.op(id).duplicable, graph.op(id).name);
      set_of[id.index()] = narrow(s);
    }
  }
  std::vector<OperatorId> side;
  for (std::size_t i = 0; i < n; ++i) {
    if (!set_of[i] && !graph.operators()[i].duplicable) side.emplace_back(i);
  }
  const Contraction c = contract_colocation(graph, side);
  for (const auto& node : c.nodes) {
    std::uint32_t home = 0;
    for (const OperatorId id : node) {
      for (const OperatorId p : graph.predecessors(id)) home = std::max(home, set_of[p.index()].value_or(0));
    }
    for (const OperatorId id : node) {
      set_of[id.index()] = home;
      sets[home].push_back(id);
    }
  }

  // Readers stand behind what they read, so one backward sweep finds all duplicables that a set needs.
  std::vector<std::vector<std::uint32_t>> wanted(n);  // by duplicable: the sets that need it
  for (std::size_t i = n; i-- > 0;) {
    const bool copied = graph.operators()[i].duplicable;
    if (copied) {
      auto& homes = wanted[i];
      std::sort(homes.begin(), homes.end());
      homes.erase(std::unique(homes.begin(), homes.end()), homes.end());
      if (homes.empty()) homes.push_back(narrow(sets.size() - 1));
      for (const std::uint32_t s : homes) sets[s].emplace_back(i);
    }
    for (const OperatorId p : graph.predecessors(OperatorId(i))) {
      if (!graph.op(p).duplicable) continue;
      auto& homes = wanted[p.index()];
      if (copied) {
        homes.insert(homes.end(), wanted[i].begin(), wanted[i].end());
      } else {
        homes.push_back(*set_of[i]);
      }
    }
  }
  for (auto& set : sets) std::sort(set.begin(), set.end());
  return sets;
}

}  // namespace espalier
