#pragma once

// Which traversal order to take, from what a graph looks like: small decision trees, fitted by
// bench/traversal_orders/fit on bench/traversal_orders/results.csv, one for each placer and set-up. What the
// trees are worth on families that they never saw: docs/traversal_orders.md.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "espalier/graph/orders.h"
#include "espalier/placement/engine.h"
#include "espalier/planners/placement/ordered.h"

namespace espalier {

// What placements are judged by.
enum class OrderSetUp : std::uint8_t {
  kPlaceto,  // the literature's: Placeto's simulator (placement::placeto_rules)
  kLinks,    // the engine's usual rules: links in turn, tasks by upward rank
};
std::string_view to_text(OrderSetUp set_up);  // "placeto", "links"

enum class OrderFeature : std::uint8_t {
  kUnits,          // that are placed
  kDepth,          // tasks on the longest path by count
  kWidth,          // tasks ÷ depth
  kCritical,       // critical path without messages ÷ time of all tasks
  kDegree,         // values that tasks read ÷ tasks
  kBranching,      // part of the tasks that several others read
  kCommunication,  // time of all values, read or not, over a mean way ÷ time of all tasks
  kSlack,          // memory of all devices ÷ all that is ever held; 100 at most
};
inline constexpr std::size_t kOrderFeatures = 8;
std::string_view to_text(OrderFeature feature);  // "units", "depth", …

struct OrderFeatures {
  std::array<double, kOrderFeatures> value = {};
  double of(OrderFeature feature) const { return value[static_cast<std::size_t>(feature)]; }
};
// Under the engine's rules. O(instance · devices).
OrderFeatures order_features(const placement::Engine& engine);

// A node of a tree: a question, or an answer.
struct OrderAdviceNode {
  std::optional<OrderFeature> feature = {};  // none: an answer
  double threshold = 0;                      // `below` where the feature is less, else `above`
  std::uint16_t below = 0, above = 0;        // places in the tree
  std::optional<TraversalOrder> order = {};  // of an answer; none: the order does not matter
  double confidence = 0;  // part of the graphs at this leaf where the order is within 1 % of the best one;
                          // of no order: where the worst one is
  double other = 0;       // how much longer the step is with another order, mean over orders and graphs;
                          // of no order: with any, against the best one of each graph
  double worst = 0;       // with the worst order, mean over graphs
  std::uint16_t graphs = 0;
};

// The tree of a placer; its first node is the root. (order_advice_table.cc)
std::span<const OrderAdviceNode> order_advice_tree(OrderSetUp set_up, placement::OrderedPlacer placer);

// The answer of a tree. It must be one that check_order_tree accepts.
const OrderAdviceNode& order_advice(std::span<const OrderAdviceNode> tree, const OrderFeatures& features);

// Whether every path from the root ends at an answer, by larger and larger places.
bool check_order_tree(std::span<const OrderAdviceNode> tree);

// "alpha: …" or "any order: …", one line for people.
std::string advice_text(const OrderAdviceNode& answer);

}  // namespace espalier
