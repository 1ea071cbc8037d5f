#pragma once

// PipeDream's planner: the whole graph as a chain, cut by min_max_splits.

#include <vector>

#include "espalier/planners/planner.h"

namespace espalier {

struct PipeDreamOptions {
  enum class Order : std::uint8_t {
    kGraph,         // the graph's own
    kDepthFirst,    // branch by branch: a stage holds whole branches, or layers of one
    kBoth,          // these two
    kBreadthFirst,  // layer by layer: a stage holds a layer of every branch
    kAll,           // all three
  } order = Order::kBoth;
  enum class Choice : std::uint8_t {
    kBottleneck,  // PipeDream's own: the least bottleneck, whatever its depth
    kSimulated,   // the fastest simulated of the plans that no other beats in both bottleneck and depth
  } choice = Choice::kSimulated;
  OrderRule schedule = ScheduleKind::kOneFOneB;
  std::size_t most_replicas = kMaxMicroBatches;  // of a stage
};

// For each micro-batch size, each order of the operators (with pins also pin_by_pin_order) and each row of
// device_rows. Pins: chain_split.h. A stage edge joins neighbours of the chain, whether data crosses or not.
// Where its estimate rules all splits out, it proposes those that fit into the least larger share of memory
// in the smallest micro-batch (closest_splits), so that the judge says what is short.
Outcome pipedream(const Problem& problem, const PipeDreamOptions& options, Context& context);

}  // namespace espalier
