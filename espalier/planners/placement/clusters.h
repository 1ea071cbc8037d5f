#pragma once

// Units of an instance in groups that move as one: what a search tries before single units, what a policy's
// net sees and what its actions are.
//
// Whoever moves one of 50,000 operators at a time never takes a whole layer elsewhere: each step on the way
// is worse than the last. Whoever moves one of 256 groups does. Unlike a coarsening (coarsening.h) groups
// need not be free of cycles, since nobody simulates them: a placement of groups is judged as the placement
// of the units that it stands for.
//
//   units ──(heaviest edges first, under caps of time and memory)──▶ clusters

#include <cstdint>
#include <span>
#include <vector>

#include "espalier/placement/instance.h"

namespace espalier::placement {

struct ClusterOptions {
  std::size_t clusters = 256;  // aimed at; 0: every unit alone
  // A cluster has at most so many times the work of an even share, and this part of the smallest device's
  // memory. Units beyond them stay alone.
  double most_time = 2.5;
  double most_memory = 0.25;
  // But units that exchange messages longer than their work stay together up to this part of a device's even
  // share of all work.
  double most_bound = 0.5;
  // By unit: those of different parts (layers: layers_of) join only where nothing else leads to the aim, so
  // that a placement of whole parts stays one. Empty: there are none.
  std::vector<std::uint32_t> parts = {};
};

// Invariants: every unit has a cluster; every cluster has a unit; clusters are numbered by their first unit;
// all units of one are allowed on the same devices.
struct Clusters {
  std::vector<std::uint32_t> of_unit;
  std::size_t count = 0;
  friend bool operator==(const Clusters&, const Clusters&) = default;
};

// First who must not be parted, then rounds of joining a cluster to its neighbour with the longest message
// for the work of both (as size- constrained label propagation does: Meyerhenke, Sanders, Schulz, SEA'14),
// then neighbours in the order of tasks. There may be more clusters than aimed at where the caps leave no
// other way, never fewer than the aim or the units. O(rounds · edges · log edges).
Clusters cluster_units(const Instance& instance, const ClusterOptions& options);

// The same instance with each cluster as one unit: tasks, values, times and so each step stay what they are.
// A placement of it is one device for each cluster. O(instance).
Instance joined_units(const Instance& instance, const Clusters& clusters);

// Each unit where its cluster stands.
Assignment assignment_of_clusters(const Clusters& clusters, std::span<const DeviceId> device);

// For each cluster the device of most of its work: how an assignment looks to a policy.
std::vector<DeviceId> devices_of_clusters(const Instance& instance, const Clusters& clusters,
                                          std::span<const DeviceId> assignment);

}  // namespace espalier::placement
