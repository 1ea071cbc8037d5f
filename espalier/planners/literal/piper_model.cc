#include "espalier/planners/literal/piper_model.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>

#include "espalier/base/check.h"

namespace espalier::literal {
namespace {

constexpr double kUnlisted = std::numeric_limits<double>::infinity();
constexpr std::int64_t kMostDevices = 1 << 20;

[[noreturn]] void refuse_layer(const PiperProfile& profile, std::size_t node, const std::string& what) {
  throw InputError(profile.file + ": layer " + std::to_string(profile.nodes[node].id) + " " + what);
}

double peer_bytes(const PiperProfile& profile, std::size_t node, std::size_t peer, std::string_view what,
                  const std::vector<PiperProfile::PeerBytes>& list) {
  const std::string id = std::to_string(profile.nodes[peer].id);
  for (const PiperProfile::PeerBytes& entry : list) {
    if (entry.peer == id) return entry.bytes;
  }
  refuse_layer(profile, node,
               "has no " + std::string(what) + " for layer " + id + ", to which it has an edge");
}

// The ways of a layer at a degree that the options allow.
std::vector<const PiperProfile::Way*> allowed_ways(const PiperProfile::Node& node, std::uint32_t degree,
                                                   const PiperOptions& options) {
  std::vector<const PiperProfile::Way*> ways;
  for (const PiperProfile::Way& way : node.ways) {
    if (way.degree == degree && (options.recompute || !way.recompute)) ways.push_back(&way);
  }
  return ways;
}

LayerWays layer_ways(const PiperProfile& profile, std::size_t node, std::uint32_t degree,
                     const PiperOptions& options) {
  LayerWays result;
  for (const PiperProfile::Way* way : allowed_ways(profile.nodes[node], degree, options)) {
    const LayerWays::Way next{way->time, way->memory_per_micro_batch, way->memory_fixed, way->recompute};
    if (!result.listed) {
      result.fast = next;
      result.parameters = way->parameters;
    } else if (way->parameters != result.parameters) {
      refuse_layer(profile, node,
                   "has two ways at degree " + std::to_string(degree) +
                       " with different parameterSize; expected the same weights");
    } else if (next.time < result.fast.time) {
      result.other = result.fast;
      result.fast = next;
    } else {
      result.other = next;
    }
    result.listed = true;
  }
  return result;
}

enum class EdgeEnd : std::uint8_t { kReader, kSource };

// What the edge to `peer` costs a stage with `node`, which is its `end`.
BorderEdge border_edge(const PiperProfile& profile, const PiperModel& model, std::size_t node,
                       std::size_t peer, double bytes, const PiperOptions& options, EdgeEnd end) {
  BorderEdge edge;
  edge.peer = static_cast<std::uint32_t>(peer);
  for (const std::uint32_t degree : model.degrees) {
    std::optional<double> sync;
    for (const PiperProfile::Way* way : allowed_ways(profile.nodes[node], degree, options)) {
      const double own = end == EdgeEnd::kReader
                             ? peer_bytes(profile, node, peer, "syncTimeFw", way->sync_forward)
                             : peer_bytes(profile, node, peer, "syncTimeBw", way->sync_backward);
      if (sync && *sync != own)
        refuse_layer(profile, node,
                     "has two ways at degree " + std::to_string(degree) +
                         " with different sync bytes; expected the same exchange");
      sync = own;
    }
    edge.bytes.push_back(2 * (bytes + sync.value_or(0)));
  }
  return edge;
}

}  // namespace

PiperModel piper_model(const PiperProfile& profile, const PiperOptions& options) {
  PiperModel model;
  model.devices = options.devices.value_or(profile.devices);
  model.micro_batches = options.micro_batches.value_or(profile.micro_batches);
  model.memory = options.memory.value_or(profile.memory);
  model.bandwidth = options.bandwidth.value_or(profile.bandwidth);
  if (profile.nodes.empty()) throw InputError(profile.file + ": has no layers");
  constexpr std::size_t kMostLayers = 20'000;  // squares of it are stored
  if (profile.nodes.size() > kMostLayers)
    throw InputError(profile.file + ": has more than " + std::to_string(kMostLayers) +
                     " layers, which is the most");
  if (model.devices < 1 || model.devices > kMostDevices || model.micro_batches < 1 || !(model.memory >= 0) ||
      !(model.bandwidth > 0)) {
    throw InputError(profile.file + ": expected 1 to " + std::to_string(kMostDevices) +
                     " devices, a micro-batch or more, bytes of memory and a bandwidth above 0");
  }
  model.most_s = std::min(model.devices, model.micro_batches);
  for (const PiperProfile::Node& node : profile.nodes) {
    for (const PiperProfile::Way& way : node.ways) {
      if (way.degree <= model.devices && (options.tensor_parallel || way.degree == 1))
        model.degrees.push_back(way.degree);
    }
  }
  std::sort(model.degrees.begin(), model.degrees.end());
  model.degrees.erase(std::unique(model.degrees.begin(), model.degrees.end()), model.degrees.end());
  for (std::int64_t d = 1; d <= (options.data_parallel ? model.most_s : 1); ++d) {
    if (model.micro_batches % d == 0) model.replicas.push_back(static_cast<std::uint32_t>(d));
  }
  const std::size_t count = profile.nodes.size();
  model.work.assign(count, kUnlisted);
  model.bytes.assign(count, kUnlisted);
  for (const std::uint32_t degree : model.degrees) {
    model.layers.emplace_back();
    for (std::size_t v = 0; v < count; ++v) {
      model.layers.back().push_back(layer_ways(profile, v, degree, options));
      const LayerWays& ways = model.layers.back().back();
      if (!ways.listed) continue;
      model.work[v] = std::min(model.work[v], ways.fast.time * degree);
      model.bytes[v] = std::min(model.bytes[v], ways.fast.bytes(1) * degree);
      if (ways.other) model.bytes[v] = std::min(model.bytes[v], ways.other->bytes(1) * degree);
    }
  }
  model.edges.resize(count);
  model.after.resize(count);
  for (const PiperProfile::Edge& edge : profile.edges) {
    model.edges[edge.to].push_back(
        border_edge(profile, model, edge.to, edge.from, edge.bytes, options, EdgeEnd::kReader));
    model.after[edge.from].push_back(static_cast<std::uint32_t>(edge.to));
  }
  for (const PiperProfile::Edge& edge : profile.edges)
    model.edges[edge.from].push_back(
        border_edge(profile, model, edge.from, edge.to, edge.bytes, options, EdgeEnd::kSource));
  if (const std::vector<std::uint32_t> order = topological_order(model.after); order.size() < count) {
    std::vector<bool> sorted(count);
    for (const std::uint32_t v : order) sorted[v] = true;
    refuse_layer(profile,
                 static_cast<std::size_t>(std::find(sorted.begin(), sorted.end(), false) - sorted.begin()),
                 "is on a cycle of edges, or reads one; expected no cycles");
  }
  return model;
}

}  // namespace espalier::literal
