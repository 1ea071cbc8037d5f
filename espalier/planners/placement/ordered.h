#pragma once

// Placers that visit the operators one after the other, in any of the project's orders (graph/orders.h): what
// the traversal-order study (arXiv 2201.09676) varies, and what its question is asked of here.
//
//   uniform-walk  Placeto's progressive placer (NeurIPS'19) with a policy that knows nothing: an episode
//                 begins at the best placement so far and gives each operator in turn a device drawn
//                 uniformly, judged after each step. With the study's entropy weight of 1 and forty small
//                 updates its policy stays near this one; the result is the best placement visited
//   accept        the same draws, but a move stays only if the step is not longer, and nothing is undone
//   list          list scheduling: of the operators that are ready the first in the order, to the device
//                 where it ends first (ListState). Orders need not be topological
//   descent       coordinate descent: each operator in turn to the device where the step is shortest; where a
//                 whole round gains nothing, a few random moves from the best, and on
//
// All begin with everything on the first device, and take the same number of looks: one for each step of a
// walk, each move that a descent tries, each pair of a unit and a device that a list pass asks. An episode,
// round or pass has its own order where the order changes by episode (random_per_episode, in_turn); a list
// pass in a fixed order is the same each time and is made once.
//
// A unit stands where the order meets its first operator.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "espalier/graph/orders.h"
#include "espalier/placement/engine.h"
#include "espalier/planners/context.h"
#include "espalier/planners/placement/placer.h"

namespace espalier::placement {

enum class OrderedPlacer : std::uint8_t { kUniformWalk, kAccept, kList, kDescent };
const std::vector<OrderedPlacer>& ordered_placers();  // as above
std::string_view to_text(OrderedPlacer placer);       // "uniform-walk"
std::optional<OrderedPlacer> parse_ordered_placer(std::string_view text);

struct OrderedOptions {
  TraversalOrder order = TraversalOrder::kTopoGenerations;
  std::uint64_t seed = 1;
  std::uint64_t looks = 1'000;
};

// The best assignment visited that fits, with its step by the engine as estimate; `why` where none fits. The
// rules' order must not be kListed. Takes a state of the context for each look.
Placed place_in_order(const Graph& graph, const Engine& engine, OrderedPlacer placer,
                      const OrderedOptions& options, Context& context);

}  // namespace espalier::placement
