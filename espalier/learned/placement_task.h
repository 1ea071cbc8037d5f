#pragma once

// A graph that a policy learns to place: what the net sees of it, and who judges its placements.

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "espalier/learned/policy_input.h"
#include "espalier/placement/engine.h"
#include "espalier/planners/placement/clusters.h"

namespace espalier::placement {

struct TaskOptions {
  ClusterOptions clusters = {};
  TraversalOrder order = TraversalOrder::kTopoGenerations;  // of segments
  Rules rules = {};
  std::vector<std::uint32_t> priority = {};  // by task, smaller first: what devices run by; empty: the graph
  // Placers that learn find out which of the usual orders they learn by (order_trial.h), and judge answers by
  // each: `priority` does not count then.
  bool tries_orders = false;
};

// Refers to the instance; any number of threads may read it.
class PlacementTask {
 public:
  PlacementTask(const Graph& graph, const Instance& instance, const TaskOptions& options);
  // The same with devices that run by another order.
  PlacementTask(const PlacementTask& other, std::vector<std::uint32_t> priority);

  const Instance& instance() const { return engine_.instance(); }
  const Engine& engine() const { return engine_; }
  std::span<const std::uint32_t> priority() const { return priority_; }  // of the options
  const Clusters& clusters() const { return clusters_; }
  const PolicyInput& input() const { return input_; }
  std::span<const std::uint32_t> layer_of_unit() const { return layers_; }  // layers_of
  Bytes memory() const { return memory_; }                                  // of all devices

  // The step of all units on the device where it is least, whether they fit or not: the unit of scores.
  Duration alone() const { return alone_; }

 private:
  std::vector<std::uint32_t> layers_;
  Clusters clusters_;
  PolicyInput input_;
  std::vector<std::uint32_t> priority_;
  Engine engine_;
  Bytes memory_;
  Duration alone_;
};

// The same with devices that run by each of the usual orders (ranks.h).
std::deque<PlacementTask> tasks_by_order(const PlacementTask& task);

// A device for each node of a policy's input.
using NodeDevices = std::vector<DeviceId>;

// A level of schedule priority for each node, smaller first; empty: nodes run by the task's own order.
using NodeLevels = std::vector<std::uint32_t>;

// By node whom it joins, as an entry of its choices (coarsening.h); empty: each node stands by itself.
using NodeChoices = std::vector<std::uint32_t>;

struct Sample {
  NodeDevices devices;
  Assignment assignment;  // of units: that of the nodes, or what repair made of it
  Evaluated evaluated;
  NodeLevels levels = {};
  NodeChoices choices = {};
};

// What devices run by: operators by the level of their node, if nodes have any, then by the task's own order.
DeviceOrders orders_of(const PlacementTask& task, const NodeLevels& levels);

// How invalid placements are priced.
enum class InvalidPrice : std::uint8_t {
  kGraded,    // time · (2 + 20 · what lacks / all memory)
  kConstant,  // 100 s, as a run that fails counts in HDP
};

Bytes all_memory(const Instance& instance);

// What a placement that does not fit costs for its step, kGraded. `memory`: of all devices.
double graded_price(const Evaluated& evaluated, Bytes memory);

// What is minimised: the step, or the price of a placement that does not fit, over alone().
double score(const PlacementTask& task, const Evaluated& evaluated,
             InvalidPrice price = InvalidPrice::kGraded);

enum class Repairs : std::uint8_t { kNone, kInvalid };  // repair.h moves units of what does not fit

// Judges placements of nodes, on all threads of the pool (none: the caller's).
std::vector<Sample> judge(const PlacementTask& task, std::vector<NodeDevices> placements, Repairs repairs,
                          ThreadPool* pool);

// The same where devices run by levels. `levels`: by placement.
std::vector<Sample> judge(const PlacementTask& task, std::vector<NodeDevices> placements,
                          std::vector<NodeLevels> levels, Repairs repairs, ThreadPool* pool);

// The same of placements of units, which may part those of a node: its device is that of most of its work.
std::vector<Sample> judge_units(const PlacementTask& task, std::vector<Assignment> assignments,
                                Repairs repairs, ThreadPool* pool);

// Draws placements of nodes: each node's device from its row of `probability` (nodes × devices, rows add up
// to 1), independently. The same for the same seed.
std::vector<NodeDevices> draw(std::span<const float> probability, std::size_t devices, std::size_t count,
                              std::uint64_t seed);

// Draws an entry of each row in the same way: levels, or whom nodes join.
std::vector<std::vector<std::uint32_t>> draw_entries(std::span<const float> probability, std::size_t columns,
                                                     std::size_t count, std::uint64_t seed);

// The entry of a row of probabilities that a uniform number in [0, 1) falls on; never one of probability 0.
std::size_t drawn_entry(std::span<const float> row, double uniform);

// Each node's most probable device, the smallest of equals.
NodeDevices most_probable(std::span<const float> probability, std::size_t devices);

// +1 for the least score, -1 for the largest, evenly between; equal scores share the mean of their ranks.
std::vector<double> rank_advantages(const std::vector<double>& scores);

}  // namespace espalier::placement
