#pragma once

// A split by hand: stages as people name them, "h.0-5,h.6-11" or "wte+h.[0-5].*=gpu:0,h.6-11=gpu:1+gpu:2".
//
// Items stand between commas, one for each stage. An item is one or several names joined by '+'
// (graph/module_names.h), and perhaps '=' with a device, or with several joined by '+': a replica of the
// stage on each. A device may be a pattern, `gpu:[0-3]`.
//
// What lies between operators of a stage belongs to it: whatever is on a path from the stage back to it, and
// what shares memory with it that is written. Other operators that no item names join a stage by join_rest
// (planners/given_sets.h): the one they read from, and what reads from none the one that reads it first.

#include <string>
#include <string_view>
#include <vector>

#include "espalier/cluster/cluster.h"
#include "espalier/graph/graph.h"
#include "espalier/planners/pins.h"

namespace espalier {

struct HandStage {
  std::string item;                   // as typed, without devices
  std::string name = {};              // the item where it can be a stage's name; else empty
  std::vector<OperatorId> operators;  // ascending; no duplicable ones
  std::vector<DeviceId> devices;      // one for each replica, as typed or pinned; empty: left open
  std::size_t unnamed = 0;            // operators that the item does not name
  friend bool operator==(const HandStage&, const HandStage&) = default;
};

// In the order of the items; each operator but the duplicable ones stands in exactly one of them, and the
// stages form a DAG. Throws InputError with one line: a name that means nothing, an operator that two items
// name, items that read from each other, or hold what shares memory that is written, a device that is not
// there, a pin elsewhere. O(items · (modules + operators)).
std::vector<HandStage> parse_hand_split(std::string_view text, const Graph& graph, const Cluster& cluster,
                                        const Pins& pins);

// "14 operators that no item names: 3 with h.0-5, 11 with h.6-11"; empty if there are none.
std::string unnamed_text(const std::vector<HandStage>& stages);

}  // namespace espalier
