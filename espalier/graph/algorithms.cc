#include "espalier/graph/algorithms.h"

#include <algorithm>

#include "espalier/base/check.h"

namespace espalier {

std::vector<std::uint32_t> depths(const Graph& graph) {
  std::vector<std::uint32_t> depth(graph.operators().size(), 0);
  for (std::size_t i = 0; i < depth.size(); ++i) {
    for (const OperatorId p : graph.predecessors(OperatorId(i))) {
      depth[i] = std::max(depth[i], depth[p.index()] + 1);
    }
  }
  return depth;
}

std::vector<Duration> top_levels(const Graph& graph, std::span<const Duration> weights) {
  ESP_CHECK(weights.size() == graph.operators().size(), weights.size());
  std::vector<Duration> level(weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    for (const OperatorId p : graph.predecessors(OperatorId(i))) {
      level[i] = std::max(level[i], level[p.index()] + weights[p.index()]);
    }
  }
  return level;
}

std::vector<Duration> bottom_levels(const Graph& graph, std::span<const Duration> weights) {
  ESP_CHECK(weights.size() == graph.operators().size(), weights.size());
  std::vector<Duration> level(weights.size());
  for (std::size_t i = weights.size(); i-- > 0;) {
    for (const OperatorId s : graph.successors(OperatorId(i)))
      level[i] = std::max(level[i], level[s.index()]);
    level[i] += weights[i];
  }
  return level;
}

CriticalPath critical_path(const Graph& graph, std::span<const Duration> weights) {
  const std::vector<Duration> rest = bottom_levels(graph, weights);
  CriticalPath path;
  // max_element takes the first of equals, so ties go to smaller ids at each step.
  const auto heaviest = [&](const auto& candidates) {
    return *std::max_element(candidates.begin(), candidates.end(),
                             [&](OperatorId a, OperatorId b) { return rest[a.index()] < rest[b.index()]; });
  };
  std::vector<OperatorId> sources;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (graph.predecessors(OperatorId(i)).empty()) sources.emplace_back(i);
  }
  if (sources.empty()) return path;
  path.operators = {heaviest(sources)};
  path.length = rest[path.operators[0].index()];
  while (!graph.successors(path.operators.back()).empty()) {
    path.operators.push_back(heaviest(graph.successors(path.operators.back())));
  }
  return path;
}

bool is_convex(const Graph& graph, std::span<const OperatorId> set) {
  if (set.size() < 2) return true;
  const std::size_t first = set.front().index();
  const std::size_t last = set.back().index();
  enum : char { kOutside, kInside, kLeft };  // kLeft: outside, behind an operator of the set
  std::vector<char> state(last - first + 1, kOutside);
  for (const OperatorId id : set) {
    if (!graph.op(id).duplicable) state[id.index() - first] = kInside;
  }
  for (std::size_t i = first; i <= last; ++i) {
    char& own = state[i - first];
    for (const OperatorId p : graph.predecessors(OperatorId(i))) {
      if (p.index() < first) continue;
      const char before = state[p.index() - first];
      if (own == kInside && before == kLeft) return false;
      if (own == kOutside && before != kOutside) own = kLeft;
    }
  }
  return true;
}

std::vector<OperatorId> graph_order(const Graph& graph) {
  std::vector<OperatorId> order;
  for (std::size_t i = 0; i < graph.operators().size(); ++i) order.emplace_back(i);
  return order;
}

std::vector<OperatorId> depth_first_order(const Graph& graph) {
  const std::size_t n = graph.operators().size();
  std::vector<std::size_t> missing(n);
  std::vector<OperatorId> ready;  // the last one is next
  for (std::size_t i = n; i-- > 0;) {
    missing[i] = graph.predecessors(OperatorId(i)).size();
    if (missing[i] == 0) ready.emplace_back(i);
  }
  std::vector<OperatorId> order;
  while (!ready.empty()) {
    const OperatorId next = ready.back();
    ready.pop_back();
    order.push_back(next);
    const auto successors = graph.successors(next);
    for (auto s = successors.rbegin(); s != successors.rend(); ++s) {
      if (--missing[s->index()] == 0) ready.push_back(*s);
    }
  }
  return order;
}

std::vector<OperatorId> breadth_first_order(const Graph& graph) {
  const std::vector<std::uint32_t> depth = depths(graph);
  std::vector<OperatorId> order = graph_order(graph);
  std::stable_sort(order.begin(), order.end(),
                   [&](OperatorId a, OperatorId b) { return depth[a.index()] < depth[b.index()]; });
  return order;
}

bool is_legal_order(const Graph& graph, std::span<const OperatorId> order) {
  const std::size_t n = graph.operators().size();
  if (order.size() != n) return false;
  std::vector<char> done(n, 0);
  for (const OperatorId id : order) {
    if (id.index() >= n || done[id.index()] != 0) return false;
    for (const OperatorId p : graph.predecessors(id)) {
      if (done[p.index()] == 0) return false;
    }
    done[id.index()] = 1;
  }
  return true;
}

}  // namespace espalier
