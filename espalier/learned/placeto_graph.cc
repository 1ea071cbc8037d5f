#include "espalier/learned/placeto_graph.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "espalier/base/rng.h"
#include "espalier/base/shuffle.h"
#include "espalier/planners/placement/simple.h"

namespace espalier::placement {
namespace {

constexpr std::size_t kSetsOfASize = 2;

void scale_by_largest(std::vector<float>& values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  if (largest == 0) return;
  for (float& value : values) value /= largest;
}

Clusters nodes_of(const Graph& graph, const Instance& instance, std::size_t most_nodes) {
  ClusterOptions options{.clusters = 0};
  if (instance.units() > most_nodes) options = {.clusters = most_nodes, .parts = layers_of(instance, graph)};
  return cluster_units(instance, options);
}

void add_tasks(const Instance& instance, PlacetoGraph& made) {
  made.first.assign(made.nodes, TaskId(instance.tasks()));
  made.cost.assign(made.nodes, 0);
  for (std::size_t t = 0; t < instance.tasks(); ++t) {
    const std::uint32_t node = made.clusters.of_unit[instance.unit[t].index()];
    made.first[node] = std::min(made.first[node], TaskId(t));
    for (std::size_t d = 0; d < made.devices; ++d)
      made.cost[node] += static_cast<float>(to_seconds(instance.time_on(TaskId(t), DeviceId(d))));
  }
  scale_by_largest(made.cost);
  made.sequence.resize(made.nodes);
  std::iota(made.sequence.begin(), made.sequence.end(), 0U);
  std::sort(made.sequence.begin(), made.sequence.end(),
            [&](std::uint32_t a, std::uint32_t b) { return made.first[a] < made.first[b]; });
  made.allowed.assign(made.nodes * made.devices, 0);
  for (std::size_t u = 0; u < instance.units(); ++u) {
    for (const DeviceId device : instance.allowed[u])
      made.allowed[made.clusters.of_unit[u] * made.devices + device.index()] = 1;
  }
}

void add_edges(const Instance& instance, PlacetoGraph& made) {
  std::set<std::pair<std::uint32_t, std::uint32_t>> edges, turned;
  made.output.assign(made.nodes, 0);
  const auto node_of = [&](TaskId task) {
    return made.clusters.of_unit[instance.unit[task.index()].index()];
  };
  for (std::size_t v = 0; v < instance.values(); ++v) {
    const std::uint32_t from = node_of(instance.producer[v]);
    bool leaves = false;
    for (const TaskId reader : instance.readers[v]) {
      const std::uint32_t to = node_of(reader);
      leaves = leaves || to != from;
      if (made.first[from] >= made.first[to]) continue;
      edges.emplace(from, to);
      turned.emplace(to, from);
    }
    if (leaves) made.output[from] += static_cast<float>(instance.bytes[v].count());
  }
  scale_by_largest(made.output);
  const auto fill = [&](const auto& pairs, Lists<std::uint32_t>& lists) {
    auto next = pairs.begin();
    for (std::size_t n = 0; n < made.nodes; ++n) {
      for (; next != pairs.end() && next->first == n; ++next) lists.items.push_back(next->second);
      lists.close();
    }
  };
  fill(edges, made.after);
  fill(turned, made.before);
}

// nodes × nodes: who leads to a node, by any way.
std::vector<char> ancestors(const PlacetoGraph& graph) {
  const std::size_t nodes = graph.nodes;
  std::vector<char> leads(nodes * nodes);
  for (const std::uint32_t node : graph.sequence) {
    for (const std::uint32_t from : graph.before[node]) {
      leads[node * nodes + from] = 1;
      for (std::size_t n = 0; n < nodes; ++n) leads[node * nodes + n] |= leads[from * nodes + n];
    }
  }
  return leads;
}

void share_equally(std::span<float> row) {
  const auto count = static_cast<float>(std::count(row.begin(), row.end(), 1.0F));
  for (float& entry : row) entry = count > 0 ? entry / count : 0;
}

// What each node sees of a set: a breadth-first search from all of it, the smallest numbers first.
struct Seen {
  std::vector<std::optional<std::uint32_t>> distance;
  std::vector<std::uint32_t> nearest;
};
Seen seen_from(const PlacetoGraph& graph, const std::vector<std::uint32_t>& set) {
  Seen seen{std::vector<std::optional<std::uint32_t>>(graph.nodes), std::vector<std::uint32_t>(graph.nodes)};
  std::vector<std::uint32_t> queue = set;
  for (const std::uint32_t node : set) {
    seen.distance[node] = 0;
    seen.nearest[node] = node;
  }
  for (std::size_t i = 0; i < queue.size(); ++i) {
    const std::uint32_t node = queue[i];
    for (const Lists<std::uint32_t>* lists : {&graph.before, &graph.after}) {
      for (const std::uint32_t next : (*lists)[node]) {
        if (!seen.distance[next]) {
          queue.push_back(next);
          seen.distance[next] = *seen.distance[node] + 1;
          seen.nearest[next] = seen.nearest[node];
        } else if (*seen.distance[next] == *seen.distance[node] + 1) {
          seen.nearest[next] = std::min(seen.nearest[next], seen.nearest[node]);
        }
      }
    }
  }
  return seen;
}

}  // namespace

PlacetoGraph make_placeto_graph(const Graph& graph, const Instance& instance, std::size_t most_nodes) {
  PlacetoGraph made;
  made.clusters = nodes_of(graph, instance, most_nodes);
  made.nodes = made.clusters.count;
  made.devices = instance.devices();
  add_tasks(instance, made);
  add_edges(instance, made);
  return made;
}

void append_features(const PlacetoGraph& graph, std::span<const Duration> start,
                     std::span<const DeviceId> device, std::span<const char> placed, std::uint32_t current,
                     std::vector<float>& rows) {
  const Duration now = start[graph.first[current].index()];
  const auto behind = [&](std::size_t n) {
    return static_cast<float>((start[graph.first[n].index()] - now).count());
  };
  float furthest = 1;
  for (std::size_t n = 0; n < graph.nodes; ++n) furthest = std::max(furthest, std::abs(behind(n)));
  for (std::size_t n = 0; n < graph.nodes; ++n) {
    rows.insert(rows.end(), {graph.cost[n], graph.output[n], placed[n] != 0 ? 1.0F : 0.0F,
                             n == current ? 1.0F : 0.0F, behind(n) / furthest});
    for (std::size_t d = 0; d < graph.devices; ++d) rows.push_back(device[n].index() == d ? 1.0F : 0.0F);
  }
}

std::vector<float> pooling_rows(const PlacetoGraph& graph) {
  const std::size_t nodes = graph.nodes;
  const std::vector<char> leads = ancestors(graph);
  std::vector<float> rows(nodes * 3 * nodes);
  for (std::size_t a = 0; a < nodes; ++a) {
    const std::span<float> of = std::span(rows).subspan(a * 3 * nodes, 3 * nodes);
    for (std::size_t b = 0; b < nodes; ++b) {
      const bool from = leads[a * nodes + b] != 0, to = leads[b * nodes + a] != 0;
      if (a != b) of[(from ? 0 : to ? 1 : 2) * nodes + b] = 1;
    }
    for (std::size_t kind = 0; kind < 3; ++kind) share_equally(of.subspan(kind * nodes, nodes));
  }
  return rows;
}

std::vector<float> neighbour_rows(const PlacetoGraph& graph) {
  std::vector<float> rows(graph.nodes * graph.nodes);
  for (std::size_t n = 0; n < graph.nodes; ++n) {
    const std::span<float> of = std::span(rows).subspan(n * graph.nodes, graph.nodes);
    for (const std::uint32_t from : graph.before[n]) of[from] = 1;
    for (const std::uint32_t to : graph.after[n]) of[to] = 1;
    share_equally(of);
  }
  return rows;
}

Anchors draw_anchors(const PlacetoGraph& graph, std::uint64_t seed) {
  std::vector<std::vector<std::uint32_t>> sets;
  Rng rng(seed);
  for (std::size_t size = std::max<std::size_t>(1, graph.nodes / 2); size > 0; size /= 2) {
    for (std::size_t copy = 0; copy < kSetsOfASize; ++copy) {
      std::vector<std::uint32_t> all(graph.nodes);
      std::iota(all.begin(), all.end(), 0U);
      draw_to_front(std::span(all), size, rng);
      all.resize(size);
      std::sort(all.begin(), all.end());
      sets.push_back(std::move(all));
    }
  }
  Anchors anchors{sets.size(), std::vector<std::uint32_t>(graph.nodes * sets.size()),
                  std::vector<float>(graph.nodes * sets.size())};
  for (std::size_t s = 0; s < sets.size(); ++s) {
    const Seen seen = seen_from(graph, sets[s]);
    for (std::size_t n = 0; n < graph.nodes; ++n) {
      if (!seen.distance[n]) continue;
      anchors.nearest[n * sets.size() + s] = seen.nearest[n];
      anchors.closeness[n * sets.size() + s] = 1 / (1 + static_cast<float>(*seen.distance[n]));
    }
  }
  return anchors;
}

}  // namespace espalier::placement
