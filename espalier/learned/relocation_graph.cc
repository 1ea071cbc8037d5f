#include "espalier/learned/relocation_graph.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "espalier/base/check.h"

namespace espalier::placement {
namespace {

constexpr std::size_t kMoments = 64;  // into which a step is cut, to see when devices are busy

// 0 at 0, 1 at 1, steep at first: small parts of a step differ too. Odd.
float scaled(double part) {
  const double size = std::log1p(50 * std::abs(part)) / std::log(51.0);
  return static_cast<float>(part < 0 ? -size : size);
}

double number_of(Duration time) {
  return static_cast<double>(time.count());
}

class ViewBuilder {
 public:
  ViewBuilder(const PlacementTask& task, const RelocationGraph& graph, std::span<const DeviceId> assignment)
      : task_(task),
        instance_(task.instance()),
        graph_(graph),
        line_(timeline(task.engine(), assignment)),
        step_(std::max(1.0, number_of(line_.evaluated.time))) {
    made_.evaluated = line_.evaluated;
    for (const DeviceId device : devices_of_clusters(instance_, task.clusters(), assignment))
      made_.stands.push_back(narrow(device.index()));
    for (std::size_t u = 0; u < assignment.size(); ++u) units_on_.push_back(narrow(assignment[u].index()));
  }

  RelocationView build() && {
    measure_tasks();
    measure_edges();
    for (std::size_t n = 0; n < graph_.nodes; ++n) {
      for (std::size_t d = 0; d < graph_.devices; ++d) add_option(n, d);
    }
    return std::move(made_);
  }

 private:
  // Of a node, as parts of the step.
  struct Node {
    double first = 1, last = 0, mean = 0, work = 0;
  };

  std::size_t option(std::size_t node, std::size_t device) const { return node * graph_.devices + device; }
  std::size_t moment(Duration time) const {
    return std::min(kMoments - 1, static_cast<std::size_t>(number_of(time) / step_ * kMoments));
  }
  std::uint32_t node_of(std::size_t task) const {
    return task_.clusters().of_unit[instance_.unit[task].index()];
  }

  void measure_tasks() {
    const std::size_t devices = graph_.devices;
    busy_.assign(devices * kMoments, 0);
    load_.assign(devices, 0);
    nodes_.resize(graph_.nodes);
    std::vector<double> own(graph_.nodes * kMoments);
    for (std::size_t t = 0; t < instance_.tasks(); ++t) {
      const std::size_t device = units_on_[instance_.unit[t].index()];
      const double part = number_of(line_.end[t] - line_.start[t]) / step_;
      Node& node = nodes_[node_of(t)];
      node.first = std::min(node.first, number_of(line_.start[t]) / step_);
      node.last = std::max(node.last, number_of(line_.end[t]) / step_);
      node.mean += part * number_of(line_.start[t]) / step_;
      node.work += part;
      load_[device] += part;
      busy_[device * kMoments + moment(line_.start[t])] += part * kMoments;
      own[node_of(t) * kMoments + moment(line_.start[t])] += part;
    }
    overlap_.assign(graph_.nodes * devices, 0);
    for (std::size_t n = 0; n < graph_.nodes; ++n) {
      for (std::size_t m = 0; m < kMoments; ++m) {
        const double part = own[n * kMoments + m] / std::max(1e-12, nodes_[n].work);
        for (std::size_t d = 0; part > 0 && d < devices; ++d)
          overlap_[option(n, d)] += part * std::min(1.0, busy_[d * kMoments + m]);
      }
    }
  }

  double message(const RelocationGraph::Edge& edge, std::size_t from, std::size_t to) const {
    if (from == to) return 0;
    const Route& way = instance_.way(DeviceId(from), DeviceId(to));
    return number_of(way.latency + way.hold(edge.bytes)) / step_;
  }

  void measure_edges() {
    const std::size_t devices = graph_.devices, edges = graph_.edges.size();
    std::vector<double> waited(edges, 1);
    std::size_t read = 0;
    for (std::size_t v = 0; v < instance_.values(); ++v) {
      for (const TaskId reader : instance_.readers[v]) {
        const std::uint32_t edge = graph_.of_read[read++];
        if (edge == RelocationGraph::kInside) continue;
        const Duration gap = line_.start[reader.index()] - line_.end[instance_.producer[v].index()];
        waited[edge] = std::min(waited[edge], std::max(0.0, number_of(gap) / step_));
      }
    }
    in_.assign(graph_.nodes * devices, 0);
    out_.assign(graph_.nodes * devices, 0);
    near_.assign(graph_.nodes * devices, 0);
    all_bytes_.assign(graph_.nodes, 1);
    for (std::size_t e = 0; e < edges; ++e) {
      const RelocationGraph::Edge& edge = graph_.edges[e];
      const std::size_t from = made_.stands[edge.from], to = made_.stands[edge.to];
      const auto bytes = static_cast<double>(edge.bytes.count());
      near_[option(edge.to, from)] += bytes;
      near_[option(edge.from, to)] += bytes;
      all_bytes_[edge.to] += bytes;
      all_bytes_[edge.from] += bytes;
      for (std::size_t d = 0; d < devices; ++d) {
        const double here = message(edge, from, d), there = message(edge, d, to);
        in_[option(edge.to, d)] += here;
        out_[option(edge.from, d)] += there;
        made_.arrive.insert(made_.arrive.end(), {scaled(here), scaled(waited[e])});
        made_.leave.insert(made_.leave.end(), {scaled(there), scaled(waited[e])});
      }
    }
  }

  double filled(std::size_t device) const {
    return static_cast<double>(line_.peak[device].count()) /
           std::max(1.0, static_cast<double>(instance_.memory[device].count()));
  }

  void add_option(std::size_t n, std::size_t d) {
    const std::size_t here = made_.stands[n], now = option(n, here), then = option(n, d);
    const Node& node = nodes_[n];
    const double time = number_of(graph_.time[then]) / step_, own = number_of(graph_.time[now]) / step_;
    const double room = std::max(1.0, static_cast<double>(instance_.memory[d].count()));
    const double bytes = static_cast<double>(graph_.resident[n].count()) / room;
    const auto part = [](double value) { return static_cast<float>(value); };
    const std::array<float, kOptionNumbers> row{here == d ? 1.0F : 0.0F,
                                                scaled(time),
                                                scaled(time - own),
                                                scaled(in_[then]),
                                                scaled(out_[then]),
                                                scaled(in_[then] + out_[then] - in_[now] - out_[now]),
                                                part(load_[d]),
                                                part(load_[d] + (here == d ? 0 : time)),
                                                part(load_[here]),
                                                part(overlap_[then]),
                                                part(std::min(2.0, filled(d))),
                                                scaled(bytes),
                                                filled(d) + bytes > 1 && here != d ? 1.0F : 0.0F,
                                                part(near_[then] / all_bytes_[n]),
                                                part(node.first),
                                                part(node.mean / std::max(1e-12, node.work)),
                                                part(node.last),
                                                part(std::min(2.0, filled(here)))};
    made_.numbers.insert(made_.numbers.end(), row.begin(), row.end());
    made_.moves.push_back(here != d && task_.input().allowed[then] != 0 ? 1 : 0);
  }

  const PlacementTask& task_;
  const Instance& instance_;
  const RelocationGraph& graph_;
  Timeline line_;
  double step_;
  RelocationView made_;
  std::vector<std::uint32_t> units_on_;
  std::vector<Node> nodes_;
  std::vector<double> busy_, load_, overlap_;        // devices × moments, by device, nodes × devices
  std::vector<double> in_, out_, near_, all_bytes_;  // nodes × devices; the last by node
};

}  // namespace

RelocationGraph make_relocation_graph(const PlacementTask& task) {
  const Instance& instance = task.instance();
  const Clusters& clusters = task.clusters();
  RelocationGraph graph;
  graph.nodes = clusters.count;
  graph.devices = instance.devices();
  graph.time.resize(graph.nodes * graph.devices);
  graph.resident.resize(graph.nodes);
  graph.units.resize(graph.nodes);
  const auto node_of = [&](TaskId t) { return clusters.of_unit[instance.unit[t.index()].index()]; };
  for (std::size_t u = 0; u < instance.units(); ++u) {
    const std::uint32_t node = clusters.of_unit[u];
    graph.units[node].emplace_back(u);
    for (const std::uint32_t held : instance.resident[u])
      graph.resident[node] += instance.resident_bytes[held];
  }
  for (std::size_t t = 0; t < instance.tasks(); ++t) {
    for (std::size_t d = 0; d < graph.devices; ++d)
      graph.time[node_of(TaskId(t)) * graph.devices + d] += instance.time_on(TaskId(t), DeviceId(d));
  }
  struct ReadBetween {
    std::uint32_t to, from;
    std::size_t read;
    auto operator<=>(const ReadBetween&) const = default;
  };
  std::vector<ReadBetween> passes;
  std::vector<Bytes> bytes;  // by read
  std::vector<std::uint32_t> seen(graph.nodes, RelocationGraph::kInside);
  for (std::size_t v = 0; v < instance.values(); ++v) {
    const std::uint32_t from = node_of(instance.producer[v]);
    for (const TaskId reader : instance.readers[v]) {
      const std::uint32_t to = node_of(reader);
      if (to != from) passes.push_back({to, from, bytes.size()});
      bytes.push_back(seen[to] == v ? Bytes() : instance.bytes[v]);  // a value is sent to a node once
      seen[to] = narrow(v);
    }
  }
  std::sort(passes.begin(), passes.end());
  graph.of_read.assign(bytes.size(), RelocationGraph::kInside);
  for (const ReadBetween& pass : passes) {
    const bool known =
        !graph.edges.empty() && graph.edges.back().to == pass.to && graph.edges.back().from == pass.from;
    if (!known) graph.edges.push_back({pass.from, pass.to, {}});
    graph.edges.back().bytes += bytes[pass.read];
    graph.of_read[pass.read] = narrow(graph.edges.size() - 1);
  }
  return graph;
}

RelocationView view_placement(const PlacementTask& task, const RelocationGraph& graph,
                              std::span<const DeviceId> assignment) {
  return ViewBuilder(task, graph, assignment).build();
}

}  // namespace espalier::placement
