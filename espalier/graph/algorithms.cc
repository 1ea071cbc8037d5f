#include "espalier/graph/algorithms.h"

#include <algorithm>
#include <map>
#include <numeric>

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

Reachability::Reachability(const Graph& graph, Options options) : graph_(&graph) {
  const std::size_t n = graph.operators().size();
  const std::size_t words = (n + 63) / 64;
  std::size_t total = 0;
  for (std::size_t i = 0; i < n; ++i) total += words - i / 64;
  if (n == 0 || total * 8 + n * 8 > static_cast<std::size_t>(options.max_memory.count())) return;
  bits_.assign(total, 0);
  begin_.resize(n);
  std::size_t at = 0;
  for (std::size_t i = 0; i < n; ++i) {
    begin_[i] = at;
    at += words - i / 64;
  }
  for (std::size_t i = n; i-- > 0;) {
    std::uint64_t* row = &bits_[begin_[i]];
    row[0] |= std::uint64_t{1} << (i % 64);
    for (const OperatorId s : graph.successors(OperatorId(i))) {
      const std::size_t skip = s.index() / 64;
      const std::uint64_t* other = &bits_[begin_[s.index()]];
      for (std::size_t w = skip; w < words; ++w) row[w - i / 64] |= other[w - skip];
    }
  }
}

bool Reachability::reaches(OperatorId from, OperatorId to) const {
  const std::size_t i = from.index();
  const std::size_t j = to.index();
  if (i >= j) return i == j;
  if (!stored()) return search(from, to);
  return (bits_[begin_[i] + j / 64 - i / 64] >> (j % 64) & 1) != 0;
}

bool Reachability::search(OperatorId from, OperatorId to) const {
  std::vector<char> reached(to.index() - from.index() + 1, 0);
  reached[0] = 1;
  for (std::size_t i = from.index() + 1; i <= to.index(); ++i) {
    for (const OperatorId p : graph_->predecessors(OperatorId(i))) {
      if (p >= from && reached[p.index() - from.index()] != 0) reached[i - from.index()] = 1;
    }
  }
  return reached.back() != 0;
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

std::vector<std::size_t> single_tensor_cuts(const Graph& graph, std::span<const OperatorId> order) {
  ESP_CHECK(is_legal_order(graph, order));
  const std::size_t n = order.size();
  std::vector<std::size_t> position(n);
  for (std::size_t p = 0; p < n; ++p) position[order[p].index()] = p;

  // crossing[p] = tensors over the cut behind p, as differences; forbidden likewise for groups.
  std::vector<std::int64_t> crossing(n + 1, 0);
  std::vector<std::int64_t> forbidden(n + 1, 0);
  for (std::size_t t = 0; t < graph.tensors().size(); ++t) {
    const Tensor& tensor = graph.tensor(TensorId(t));
    if (!tensor.producer || graph.op(*tensor.producer).duplicable) continue;
    const std::size_t from = position[tensor.producer->index()];
    std::size_t to = from;
    for (const OperatorId reader : graph.readers(TensorId(t))) to = std::max(to, position[reader.index()]);
    ++crossing[from];
    --crossing[to];
  }
  std::map<std::uint32_t, std::pair<std::size_t, std::size_t>> groups;
  for (std::size_t p = 0; p < n; ++p) {
    if (const auto group = graph.op(order[p]).colocation) {
      groups.try_emplace(*group, p, p).first->second.second = p;
    }
  }
  for (const auto& [group, range] : groups) {
    ++forbidden[range.first];
    --forbidden[range.second];
  }
  std::partial_sum(crossing.begin(), crossing.end(), crossing.begin());
  std::partial_sum(forbidden.begin(), forbidden.end(), forbidden.begin());
  std::vector<std::size_t> cuts;
  for (std::size_t p = 0; p + 1 < n; ++p) {
    if (crossing[p] == 1 && forbidden[p] == 0) cuts.push_back(p);
  }
  return cuts;
}

}  // namespace espalier
