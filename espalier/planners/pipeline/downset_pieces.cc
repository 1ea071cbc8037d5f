#include <algorithm>

#include "espalier/planners/pipeline/downset_search.h"

namespace espalier::internal {
namespace {

void collect(const PipeTree& tree, std::uint32_t run, std::vector<PlaceRanges>& places) {
  for (const PipeItem& item : tree.runs[run].items) {
    if (!item.fork) {
      places.push_back(item.places);
      continue;
    }
    for (const std::uint32_t branch : tree.forks[*item.fork].branches) collect(tree, branch, places);
  }
}

std::vector<PlaceRanges> cut_at_pins(const PlaceRanges& piece, const Linearization& line,
                                     std::span<const Weight> before) {
  std::vector<PlaceRanges> parts(1);
  std::optional<DeviceId> now;
  bool begun = false;
  for (const Places& each : piece) {
    for (std::uint32_t place = each.begin; place < each.end; ++place) {
      const bool idle = before[place + 1] == before[place];
      const auto pin = line.pin(place);
      if (begun && pin != now && (pin || !idle)) parts.emplace_back();
      if (!begun || pin || !idle) now = pin;
      begun = true;
      append_places(parts.back(), {place, place + 1});
    }
  }
  return parts;
}

}  // namespace

Pieces pieces_of(const PipeTree& tree, const Linearization& line, std::span<const Weight> before) {
  Pieces pieces;
  collect(tree, 0, pieces.places);
  const Graph& graph = line.problem().graph;
  if (!line.problem().pins.empty()) {
    std::vector<PlaceRanges> cut;
    for (const PlaceRanges& piece : pieces.places) {
      for (PlaceRanges& part : cut_at_pins(piece, line, before)) cut.push_back(std::move(part));
    }
    pieces.places = std::move(cut);
  }
  std::vector<std::optional<std::uint32_t>> piece_of(graph.operators().size());
  for (std::size_t p = 0; p < pieces.places.size(); ++p) {
    for (const Places& each : pieces.places[p]) {
      for (std::uint32_t place = each.begin; place < each.end; ++place)
        piece_of[line[place].index()] = narrow(p);
    }
  }
  pieces.before.resize(pieces.places.size());
  for (std::size_t op = 0; op < piece_of.size(); ++op) {
    if (!piece_of[op]) continue;
    for (const OperatorId source : graph.predecessors(OperatorId(op))) {
      const auto& from = piece_of[source.index()];
      if (from && from != piece_of[op]) pieces.before[*piece_of[op]].push_back(*from);
    }
  }
  for (auto& list : pieces.before) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
  return pieces;
}

}  // namespace espalier::internal
