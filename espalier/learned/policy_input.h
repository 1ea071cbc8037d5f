#pragma once

// What a policy knows of a graph and its devices: numbers, never names or ids, so that one policy serves
// graphs and clusters that it never saw. Everything is relative: times to the work, bytes to the memory of a
// device, levels to the critical path.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/graph/graph.h"
#include "espalier/graph/orders.h"
#include "espalier/placement/instance.h"
#include "espalier/planners/placement/clusters.h"

namespace espalier::placement {

inline constexpr std::size_t kOperatorTypes = 128;  // rows of the table of types; others share them by hash
inline constexpr std::size_t kOctaves = 4;
inline constexpr std::size_t kNodeNumbers = 22 + 6 * kOctaves;
inline constexpr std::size_t kDeviceNumbers = 10 + 2 * kOctaves;

// Rows are nodes, a node is a cluster; `nodes` and `devices` give all other sizes.
struct PolicyInput {
  std::size_t nodes = 0, devices = 0;
  bool by_priority = false;             // whether devices run by priorities, not by the order of the graph
  std::vector<float> numbers;           // nodes × kNodeNumbers: sizes, degrees, levels
  Lists<std::uint32_t> types;           // by node: types of its operators, each once, ascending
  std::vector<float> type_share;        // as types.items: that type's part of the node's work
  Lists<std::uint32_t> neighbours;      // by node: whoever it reads from or gives to, ascending
  std::vector<float> given;             // as neighbours.items: time of messages to it, as a part of all work
  std::vector<std::uint32_t> order;     // nodes as segments take them
  std::vector<float> work;              // by node: its part of all work; they add up to 1
  std::vector<std::uint32_t> layer;     // by node: the layer of its first unit (layers_of)
  std::vector<float> device_numbers;    // devices × kDeviceNumbers: speed, memory, links, place among equals
  std::vector<float> slowness;          // nodes × devices: ln(time there / mean time), 0 where all are alike
  std::vector<char> allowed;            // nodes × devices
  std::vector<std::uint32_t> equal_to;  // by device: the first device that is like it (kind, memory, links)
};

// `order`: in which units enter (a cluster where the mean of its units does); one of graph/orders.h, or by
// downward rank where the graph is not at hand. O(tasks · log + values · devices).
PolicyInput make_policy_input(const Instance& instance, const Graph& graph, const Clusters& clusters,
                              TraversalOrder order = TraversalOrder::kTopoGenerations);

// By node how much it counts where nodes are averaged: half by its work, half as any other, so that none
// counts for nothing. They add up to 1.
std::vector<float> node_weights(const PolicyInput& input);

// The same placement with equal devices renamed: those of one class by the mean level of their work, earlier
// levels first. What a policy imitates is always in this form, for it cannot tell equal devices apart.
std::vector<DeviceId> canonical(const PolicyInput& input, std::span<const DeviceId> of_node);

}  // namespace espalier::placement
