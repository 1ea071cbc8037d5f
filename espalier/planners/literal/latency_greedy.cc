#include "espalier/planners/literal/latency_greedy.h"

#include <map>
#include <utility>
#include <vector>

#include "espalier/base/check.h"

namespace espalier::literal {
namespace {

using BlockLists = std::vector<std::vector<std::size_t>>;

// By node the number of its colour, in the order of the file.
std::vector<std::size_t> colour_numbers(const MsrProfile& profile, std::size_t& count) {
  std::map<std::int64_t, std::size_t> of_colour;
  std::vector<std::size_t> number;
  for (const MsrProfile::Node& node : profile.nodes) {
    const std::size_t c = node.colour ? of_colour.emplace(*node.colour, count).first->second : count;
    if (c == count) ++count;
    number.push_back(c);
  }
  return number;
}

// By vertex, whether a way leads from one to the other.
std::vector<bool> reached_from(std::size_t start, const BlockLists& after) {
  std::vector<bool> seen(after.size());
  std::vector<std::size_t> open{start};
  while (!open.empty()) {
    const std::size_t v = open.back();
    open.pop_back();
    for (const std::size_t next : after[v]) {
      if (seen[next]) continue;
      seen[next] = true;
      open.push_back(next);
    }
  }
  return seen;
}

// Of each node its block: the first colour of those that wait for each other.
std::vector<std::size_t> blocks_of(const MsrProfile& profile) {
  std::size_t colours = 0;
  const std::vector<std::size_t> number = colour_numbers(profile, colours);
  BlockLists after(colours), before(colours);
  for (const MsrProfile::Edge& edge : profile.edges) {
    after[number[edge.from]].push_back(number[edge.to]);
    before[number[edge.to]].push_back(number[edge.from]);
  }
  std::vector<std::optional<std::size_t>> block(colours);
  for (std::size_t c = 0; c < colours; ++c) {
    if (block[c]) continue;
    block[c] = c;
    const std::vector<bool> behind = reached_from(c, after), ahead = reached_from(c, before);
    for (std::size_t other = c + 1; other < colours; ++other) {
      if (behind[other] && ahead[other]) block[other] = c;
    }
  }
  std::vector<std::size_t> of_node;
  for (const std::size_t c : number) of_node.push_back(*block[c]);
  return of_node;
}

}  // namespace

MsrPlacement greedy_placement(const MsrProfile& profile, const LatencyGreedyOptions& options) {
  const std::vector<std::size_t> block = blocks_of(profile);
  const std::size_t numbers = profile.nodes.size();
  BlockLists nodes(numbers), after(numbers);
  std::vector<double> bytes(numbers, 0);
  std::vector<std::size_t> waits(numbers, 0), ready;
  for (std::size_t i = 0; i < numbers; ++i) {
    nodes[block[i]].push_back(i);
    bytes[block[i]] += profile.nodes[i].bytes;
  }
  for (const MsrProfile::Edge& edge : profile.edges) {
    if (block[edge.from] == block[edge.to]) continue;
    after[block[edge.from]].push_back(block[edge.to]);
    ++waits[block[edge.to]];
  }
  for (std::size_t b = 0; b < numbers; ++b) {
    if (!nodes[b].empty() && waits[b] == 0) ready.push_back(b);
  }
  const double memory = options.memory.value_or(profile.memory);
  const auto most = static_cast<std::size_t>(options.accelerators.value_or(profile.accelerators));
  MsrPlacement placement{.file = profile.file, .devices = {}};
  MsrPlacement::Device cpu{.accelerator = false, .nodes = {}};
  std::size_t placed = 0;
  double held = memory;  // on the accelerator in use
  bool open = false;     // whether there is one
  while (!ready.empty()) {
    const std::size_t b = ready.back();
    ready.pop_back();
    if (!open || held + bytes[b] > memory) {
      open = bytes[b] <= memory && placement.devices.size() < most;
      if (open) placement.devices.emplace_back();
      held = 0;
    }
    MsrPlacement::Device& device = open ? placement.devices.back() : cpu;
    for (const std::size_t node : nodes[b]) device.nodes.push_back(profile.nodes[node].id);
    if (open) held += bytes[b];
    placed += nodes[b].size();
    for (const std::size_t next : after[b]) {
      if (--waits[next] == 0) ready.push_back(next);
    }
  }
  ESP_CHECK(placed == numbers, placed, numbers);
  if (!cpu.nodes.empty()) placement.devices.push_back(std::move(cpu));
  return placement;
}

}  // namespace espalier::literal
