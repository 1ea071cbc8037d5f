#include "espalier/planners/literal/free_placement.h"

#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "espalier/base/check.h"

namespace espalier::literal {

FreeItems items_by_colour(const MsrProfile& profile) {
  std::unordered_map<std::int64_t, std::uint32_t> of_colour;
  std::vector<std::uint32_t> item_of;
  std::uint32_t count = 0;
  for (const MsrProfile::Node& node : profile.nodes) {
    const std::uint32_t item = node.colour ? of_colour.emplace(*node.colour, count).first->second : count;
    if (item == count) ++count;
    item_of.push_back(item);
  }
  return free_items(profile, std::move(item_of));
}

FreeItems free_items(const MsrProfile& profile, std::vector<std::uint32_t> item_of) {
  FreeItems result;
  result.item_of = std::move(item_of);
  for (std::size_t i = 0; i < profile.nodes.size(); ++i) {
    const MsrProfile::Node& node = profile.nodes[i];
    if (result.item_of[i] >= result.items.size()) result.items.resize(result.item_of[i] + 1);
    FreeItems::Item& all = result.items[result.item_of[i]];
    all.cpu += node.cpu;
    all.accelerator += node.accelerator;
    all.bytes += node.bytes;
    all.cpu_only = all.cpu_only || !node.on_accelerator;
  }
  std::vector<std::vector<std::uint32_t>> touch(profile.nodes.size());
  const std::vector<double> cost = output_costs(profile);
  for (const MsrProfile::Edge& edge : profile.edges) {
    touch[edge.from].push_back(result.item_of[edge.to]);
  }
  std::map<std::vector<std::uint32_t>, std::uint32_t> of_items;  // outputs of the same items are one
  for (std::size_t node = 0; node < touch.size(); ++node) {
    std::vector<std::uint32_t>& items = touch[node];
    items.push_back(result.item_of[node]);
    std::sort(items.begin(), items.end());
    items.erase(std::unique(items.begin(), items.end()), items.end());
    if (items.size() < 2 || cost[node] == 0) continue;
    const auto [at, fresh] = of_items.emplace(items, static_cast<std::uint32_t>(result.outputs.size()));
    if (fresh) result.outputs.push_back({0, items});
    result.outputs[at->second].cost += cost[node];
  }
  for (std::uint32_t o = 0; o < result.outputs.size(); ++o) {
    for (const std::uint32_t item : result.outputs[o].items) result.items[item].outputs.push_back(o);
  }
  return result;
}

FreeMachine free_machine(const MsrProfile& profile, const MaxLoadOptions& options) {
  const std::int64_t accelerators = options.accelerators.value_or(profile.accelerators);
  const std::int64_t cpus = options.cpus.value_or(profile.cpus);
  if (accelerators < 0 || cpus < 0 || accelerators + cpus == 0 || accelerators + cpus > 10'000) {
    throw InputError(profile.file + ": " + std::to_string(accelerators) + " accelerators and " +
                     std::to_string(cpus) + " CPUs; expected from 1 to 10000 devices");
  }
  const double memory = options.memory.value_or(profile.memory);
  if (!(memory >= 0)) throw InputError(profile.file + ": expected the memory of an accelerator in bytes");
  return {static_cast<std::size_t>(accelerators), static_cast<std::size_t>(cpus), memory};
}

MaxLoadResult priced_items(const MsrProfile& profile, const MaxLoadOptions& options, const FreeItems& graph,
                           const FreeMachine& machine, const std::vector<std::uint32_t>& place) {
  MsrPlacement placement;
  placement.file = profile.file;
  for (std::size_t d = 0; d < machine.devices(); ++d)
    placement.devices.push_back({.accelerator = d < machine.accelerators, .nodes = {}});
  for (std::size_t node = 0; node < profile.nodes.size(); ++node)
    placement.devices[place[graph.item_of[node]]].nodes.push_back(profile.nodes[node].id);
  MaxLoadResult priced = price_placement(profile, placement, options);
  priced.items = graph.items.size();
  return priced;
}

}  // namespace espalier::literal
