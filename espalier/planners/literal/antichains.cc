#include "espalier/planners/literal/antichains.h"

#include <algorithm>
#include <map>
#include <string>

#include "espalier/base/check.h"
#include "espalier/planners/literal/downsets.h"

namespace espalier::literal {
namespace {

bool any_of_set(const NodeSet& set, const std::vector<std::size_t>& nodes) {
  return std::any_of(nodes.begin(), nodes.end(), [&](std::size_t node) { return set[node]; });
}

// Members without those that come before another, each once.
std::vector<std::size_t> without_predecessors(const PlacedGraph& graph,
                                              const std::vector<std::size_t>& members) {
  std::vector<std::size_t> result;
  for (const std::size_t node : members) {
    if (any_of_set(graph.successors[node], members)) continue;
    if (std::find(result.begin(), result.end(), node) == result.end()) result.push_back(node);
  }
  return result;
}

std::vector<std::vector<std::size_t>> next_antichains(const PlacedGraph& graph,
                                                      const std::vector<std::size_t>& antichain) {
  std::vector<std::vector<std::size_t>> result;
  const std::vector<std::size_t> members = augmented(graph, antichain);
  for (const std::size_t member : members) {
    for (const std::size_t reader : graph.readers[member]) {
      const bool known = std::find(antichain.begin(), antichain.end(), reader) != antichain.end();
      if (known || any_of_set(graph.successors[reader], members)) continue;
      std::vector<std::size_t> next = members;
      std::replace(next.begin(), next.end(), member, reader);
      result.push_back(without_predecessors(graph, next));
    }
  }
  return result;
}

// Reversed order in which a depth-first search from the nodes, in their order, leaves them.
std::vector<std::uint32_t> depth_first_order(const std::vector<std::uint32_t>& nodes,
                                             const std::vector<std::vector<std::uint32_t>>& next) {
  std::vector<std::uint32_t> left;
  std::vector<bool> seen(next.size());
  std::vector<std::size_t> at(next.size());
  for (const std::uint32_t start : nodes) {
    if (seen[start]) continue;
    seen[start] = true;
    std::vector<std::uint32_t> path{start};
    while (!path.empty()) {
      const std::uint32_t node = path.back();
      if (at[node] == next[node].size()) {
        left.push_back(node);
        path.pop_back();
      } else if (const std::uint32_t other = next[node][at[node]++]; !seen[other]) {
        seen[other] = true;
        path.push_back(other);
      }
    }
  }
  std::reverse(left.begin(), left.end());
  return left;
}

}  // namespace

PlacedGraph placed_graph(const PipedreamProfile& profile) {
  const std::size_t count = profile.nodes.size();
  constexpr std::size_t kMostNodes = 20'000;  // squares of it are stored
  if (count > kMostNodes)
    throw InputError(profile.file + ": has more than " + std::to_string(kMostNodes) +
                     " nodes, which is the most");
  PlacedGraph graph;
  graph.kept.assign(count, true);
  const auto drop = [&](std::string_view prefix, std::size_t PipedreamProfile::Edge::*end) {
    std::vector<bool> touched(count);
    for (const PipedreamProfile::Edge& edge : profile.edges) {
      if (graph.kept[edge.from] && graph.kept[edge.to]) touched[edge.*end] = true;
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (!touched[i] && profile.nodes[i].description.starts_with(prefix)) graph.kept[i] = false;
    }
  };
  drop("Input", &PipedreamProfile::Edge::to);
  drop("__getitem__", &PipedreamProfile::Edge::from);
  ItemLists before(count);
  graph.readers.resize(count);
  std::optional<std::size_t> source;
  for (const PipedreamProfile::Edge& edge : profile.edges) {
    if (!graph.kept[edge.from] || !graph.kept[edge.to]) continue;
    graph.readers[edge.from].push_back(edge.to);
    before[edge.to].push_back(static_cast<std::uint32_t>(edge.from));
  }
  for (std::size_t i = count; i-- > 0;) {
    if (graph.kept[i] && before[i].empty()) source = i;
  }
  const std::vector<std::uint32_t> order = topological_order(before);
  if (order.size() < count)
    throw InputError(profile.file + ": its edges form a cycle; expected a graph without");
  if (!source) throw InputError(profile.file + ": has no node besides inputs; expected layers");
  graph.first_source = *source;
  graph.predecessors.assign(count, NodeSet(count));
  graph.successors.assign(count, NodeSet(count));
  const auto absorb = [&](NodeSet& set, const NodeSet& other, std::size_t node) {
    set[node] = true;
    for (std::size_t i = 0; i < count; ++i) {
      if (other[i]) set[i] = true;
    }
  };
  for (const std::uint32_t node : order) {
    for (const std::uint32_t from : before[node])
      absorb(graph.predecessors[node], graph.predecessors[from], from);
  }
  for (auto node = order.rbegin(); node != order.rend(); ++node) {
    for (const std::size_t to : graph.readers[*node])
      absorb(graph.successors[*node], graph.successors[to], to);
  }
  return graph;
}

std::vector<std::size_t> augmented(const PlacedGraph& graph, const std::vector<std::size_t>& antichain) {
  std::vector<std::size_t> result;
  for (std::size_t p = 0; p < graph.kept.size(); ++p) {
    const bool needed = std::any_of(antichain.begin(), antichain.end(), [&](std::size_t member) {
      const NodeSet& before = graph.predecessors[member];
      return before[p] &&
             std::any_of(graph.readers[p].begin(), graph.readers[p].end(),
                         [&](std::size_t reader) { return reader != member && !before[reader]; });
    });
    if (needed) result.push_back(p);
  }
  result.insert(result.end(), antichain.begin(), antichain.end());
  return result;
}

std::optional<AntichainStates> antichain_states(const PlacedGraph& graph, std::size_t max_states) {
  std::vector<std::vector<std::size_t>> antichains{{graph.first_source}};
  std::map<std::vector<std::size_t>, std::uint32_t> number{{antichains[0], 0}};
  std::vector<std::vector<std::uint32_t>> next;
  for (std::uint32_t at = 0; at < antichains.size(); ++at) {
    next.emplace_back();
    const std::vector<std::size_t> current = antichains[at];
    for (std::vector<std::size_t>& other : next_antichains(graph, current)) {
      std::vector<std::size_t> key = other;
      std::sort(key.begin(), key.end());
      const auto [found, fresh] =
          number.emplace(std::move(key), static_cast<std::uint32_t>(antichains.size()));
      if (fresh) {
        if (antichains.size() == max_states) return std::nullopt;
        antichains.push_back(std::move(other));
      }
      next[at].push_back(found->second);
    }
  }
  std::vector<std::uint32_t> all(antichains.size());
  for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  const std::vector<std::uint32_t> order = depth_first_order(all, next);
  std::vector<std::uint32_t> place(order.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  AntichainStates result;
  result.states.resize(order.size());
  std::vector<std::vector<std::uint64_t>> reached(order.size(),
                                                  std::vector<std::uint64_t>(order.size() / 64 + 1));
  for (std::uint32_t i = 0; i < order.size(); ++i) {
    AntichainState& state = result.states[i];
    state.members = augmented(graph, antichains[order[i]]);
    state.nodes.assign(graph.kept.size(), false);
    for (const std::size_t member : state.members) {
      state.nodes[member] = true;
      for (std::size_t p = 0; p < state.nodes.size(); ++p) {
        if (graph.predecessors[member][p]) state.nodes[p] = true;
      }
    }
    for (const std::uint32_t other : next[order[i]]) {
      std::vector<std::uint64_t>& set = reached[place[other]];
      for (std::size_t w = 0; w < set.size(); ++w) set[w] |= reached[i][w];
      set[i / 64] |= std::uint64_t{1} << (i % 64);
    }
    result.before.emplace_back();
    for (std::uint32_t k = 0; k < i; ++k) {
      if ((reached[i][k / 64] >> (k % 64) & 1) != 0) result.before.back().push_back(k);
    }
  }
  return result;
}

}  // namespace espalier::literal
