// Latency of a placement in dnn-partitioning's model. Nodes are taken in one topological order; pieces are
// then the vertices of a graph of their own, whose cycles are refused as the authors' program does.

#include "espalier/planners/literal/latency.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/planners/literal/max_load.h"

namespace espalier::literal {
namespace {

using Edges = std::vector<std::pair<std::size_t, std::size_t>>;

// Vertices inputs first; fewer than there are where edges form a cycle.
std::vector<std::size_t> topological(std::size_t vertices, const Edges& edges) {
  std::vector<std::vector<std::size_t>> next(vertices);
  std::vector<std::size_t> waits(vertices), order;
  for (const auto& [from, to] : edges) {
    next[from].push_back(to);
    ++waits[to];
  }
  for (std::size_t v = 0; v < vertices; ++v) {
    if (waits[v] == 0) order.push_back(v);
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    for (const std::size_t to : next[order[i]]) {
      if (--waits[to] == 0) order.push_back(to);
    }
  }
  return order;
}

Edges edges_of(const MsrProfile& profile) {
  Edges edges;
  for (const MsrProfile::Edge& edge : profile.edges) edges.emplace_back(edge.from, edge.to);
  return edges;
}

std::vector<std::size_t> order_of(const MsrProfile& profile) {
  std::vector<std::size_t> order = topological(profile.nodes.size(), edges_of(profile));
  if (order.size() < profile.nodes.size()) throw InputError(profile.file + ": its edges form a cycle");
  return order;
}

// The piece of each node of the device, from 1 on.
std::vector<std::size_t> pieces_of(const MsrProfile& profile, const std::vector<std::size_t>& order,
                                   const std::vector<std::vector<std::size_t>>& inputs,
                                   const std::vector<std::size_t>& place, std::size_t device) {
  std::vector<std::size_t> piece(profile.nodes.size());
  for (const std::size_t v : order) {
    const bool here = place[v] == device;
    piece[v] = here ? 1 : 0;
    for (const std::size_t u : inputs[v])
      piece[v] = std::max(piece[v], piece[u] + (here && place[u] != device ? 1 : 0));
  }
  return piece;
}

// The pieces, and of each node its piece.
struct Cut {
  std::vector<LatencyPiece> pieces;
  std::vector<std::size_t> of_node;
};

Cut cut_into_pieces(const MsrProfile& profile, const MsrPlacement& placement,
                    const std::vector<std::size_t>& place) {
  const std::vector<std::size_t> order = order_of(profile);
  std::vector<std::vector<std::size_t>> inputs(profile.nodes.size());
  for (const MsrProfile::Edge& edge : profile.edges) inputs[edge.to].push_back(edge.from);
  Cut cut{{}, std::vector<std::size_t>(profile.nodes.size())};
  for (std::size_t d = 0; d < placement.devices.size(); ++d) {
    const bool accelerator = placement.devices[d].accelerator;
    const std::vector<std::size_t> piece = pieces_of(profile, order, inputs, place, d);
    const std::size_t begin = cut.pieces.size();
    for (std::size_t v = 0; v < place.size(); ++v) {
      if (place[v] != d) continue;
      if (accelerator && !profile.nodes[v].on_accelerator) {
        throw InputError(placement.file + ": node " + std::to_string(profile.nodes[v].id) +
                         " runs on CPUs only, and stands on an accelerator");
      }
      const std::size_t number = accelerator ? begin + piece[v] - 1 : cut.pieces.size();
      if (cut.pieces.size() <= number)
        cut.pieces.resize(number + 1, LatencyPiece{.accelerator = accelerator, .device = d, .nodes = {}});
      cut.pieces[number].nodes.push_back(v);
      cut.of_node[v] = number;
    }
  }
  return cut;
}

double lack_of(const MsrProfile& profile, const MsrPlacement& placement,
               const std::vector<std::size_t>& place) {
  double lack = 0;
  for (std::size_t d = 0; d < placement.devices.size(); ++d) {
    double bytes = 0;
    for (std::size_t v = 0; v < place.size(); ++v) bytes += place[v] == d ? profile.nodes[v].bytes : 0;
    if (placement.devices[d].accelerator) lack += std::max(0.0, bytes - profile.memory);
  }
  return lack;
}

}  // namespace

LatencyResult price_latency(const MsrProfile& profile, const MsrPlacement& placement) {
  const std::vector<std::size_t> place = places_in(profile, placement);
  const std::vector<double> cost = output_costs(profile);
  const Cut cut = cut_into_pieces(profile, placement, place);
  std::set<std::pair<std::size_t, std::size_t>> crossing, read;  // pieces; a source and a piece that reads it
  std::vector<bool> leaves(profile.nodes.size());
  for (const MsrProfile::Edge& edge : profile.edges) {
    const std::size_t from = cut.of_node[edge.from], to = cut.of_node[edge.to];
    if (from == to) continue;
    crossing.emplace(from, to);
    read.emplace(edge.from, to);
    leaves[edge.from] = true;
  }
  const std::vector<std::size_t> order =
      topological(cut.pieces.size(), Edges(crossing.begin(), crossing.end()));
  if (order.size() < cut.pieces.size())
    throw InputError(placement.file + ": devices wait for each other's nodes in a circle");
  std::vector<LatencyPiece> pieces = cut.pieces;
  for (const auto& [source, piece] : read) {
    if (pieces[piece].accelerator) pieces[piece].communication += cost[source];
  }
  std::vector<std::vector<std::size_t>> before(pieces.size());
  for (const auto& [from, to] : crossing) before[to].push_back(from);
  LatencyResult result{.latency = 0, .lack = lack_of(profile, placement, place), .pieces = {}};
  for (const std::size_t p : order) {
    LatencyPiece& piece = pieces[p];
    for (const std::size_t from : before[p]) piece.start = std::max(piece.start, pieces[from].end);
    double time = 0;
    for (const std::size_t v : piece.nodes) {
      time += piece.accelerator ? profile.nodes[v].accelerator : profile.nodes[v].cpu;
      if (piece.accelerator && leaves[v]) piece.communication += cost[v];
    }
    piece.end = piece.start + time + piece.communication;
    result.latency = std::max(result.latency, piece.end);
  }
  for (const std::size_t p : order) result.pieces.push_back(std::move(pieces[p]));
  return result;
}

double latency_bound(const MsrProfile& profile) {
  std::vector<std::vector<std::size_t>> inputs(profile.nodes.size());
  for (const MsrProfile::Edge& edge : profile.edges) inputs[edge.to].push_back(edge.from);
  std::vector<double> end(profile.nodes.size());
  double longest = 0;
  for (const std::size_t v : order_of(profile)) {
    const MsrProfile::Node& node = profile.nodes[v];
    for (const std::size_t u : inputs[v]) end[v] = std::max(end[v], end[u]);
    end[v] += node.on_accelerator ? std::min(node.accelerator, node.cpu) : node.cpu;
    longest = std::max(longest, end[v]);
  }
  return longest;
}

std::vector<std::string> check_latency(const MsrProfile& profile, const LatencyResult& result) {
  std::vector<std::string> wrong;
  const auto close = [](double a, double b) { return std::abs(a - b) <= 1e-9 * std::max(1.0, std::abs(b)); };
  std::vector<const LatencyPiece*> of(profile.nodes.size());
  for (const LatencyPiece& piece : result.pieces) {
    for (const std::size_t v : piece.nodes) {
      if (v >= of.size() || of[v]) return {"a piece has a node that is not there or in another piece"};
      of[v] = &piece;
    }
  }
  if (std::find(of.begin(), of.end(), nullptr) != of.end()) return {"a node is in no piece"};
  double latest = 0;
  for (const LatencyPiece& piece : result.pieces) {
    double ready = 0, takes = 0;
    std::set<std::size_t> moved;  // sources that cross its border
    for (const MsrProfile::Edge& edge : profile.edges) {
      if ((of[edge.from] == &piece) == (of[edge.to] == &piece)) continue;
      if (of[edge.to] == &piece) ready = std::max(ready, of[edge.from]->end);
      if (piece.accelerator && moved.insert(edge.from).second) takes += edge.cost;
    }
    for (const std::size_t v : piece.nodes)
      takes += piece.accelerator ? profile.nodes[v].accelerator : profile.nodes[v].cpu;
    if (!piece.accelerator && piece.nodes.size() != 1) wrong.emplace_back("a CPU's piece has several nodes");
    if (!close(piece.start, ready)) wrong.emplace_back("a piece starts before or after its inputs are there");
    if (!close(piece.end, piece.start + takes)) wrong.emplace_back("a piece takes another time");
    latest = std::max(latest, piece.end);
  }
  if (!close(result.latency, latest)) wrong.emplace_back("the latency is not the last piece's end");
  return wrong;
}

}  // namespace espalier::literal
