// Written by bench/traversal_orders/fit from bench/traversal_orders/results.csv; not by hand.

#include "espalier/app/order_advice.h"

// clang-format off
namespace espalier {
namespace {

constexpr OrderAdviceNode kPlacetoUniformWalk[] = {
    {.order = TraversalOrder::kRandomPerEpisode, .confidence = 0.42, .other = 0.0167, .worst = 0.0839, .graphs = 71},
};

constexpr OrderAdviceNode kPlacetoAccept[] = {
    {.confidence = 0.21, .other = 0.0180, .worst = 0.0372, .graphs = 71},
};

constexpr OrderAdviceNode kPlacetoList[] = {
    {.order = TraversalOrder::kTopoGenerations, .confidence = 0.49, .other = 0.0428, .worst = 0.1866, .graphs = 71},
};

constexpr OrderAdviceNode kPlacetoDescent[] = {
    {.confidence = 0.01, .other = 0.0479, .worst = 0.1168, .graphs = 71},
};

constexpr OrderAdviceNode kLinksUniformWalk[] = {
    {.order = TraversalOrder::kRandomPerEpisode, .confidence = 0.37, .other = 0.0165, .worst = 0.0728, .graphs = 71},
};

constexpr OrderAdviceNode kLinksAccept[] = {
    {.confidence = 0.21, .other = 0.0201, .worst = 0.0413, .graphs = 71},
};

constexpr OrderAdviceNode kLinksList[] = {
    {.order = TraversalOrder::kRandomPerEpisode, .confidence = 0.30, .other = 0.0272, .worst = 0.1530, .graphs = 71},
};

constexpr OrderAdviceNode kLinksDescent[] = {
    {.order = TraversalOrder::kTopoLifo, .confidence = 0.45, .other = 0.0178, .worst = 0.1397, .graphs = 71},
};

}  // namespace

std::span<const OrderAdviceNode> order_advice_tree(OrderSetUp set_up, placement::OrderedPlacer placer) {
  using Placer = placement::OrderedPlacer;
  const bool placeto = set_up == OrderSetUp::kPlaceto;
  switch (placer) {
    case Placer::kUniformWalk:
      return placeto ? std::span<const OrderAdviceNode>(kPlacetoUniformWalk) : kLinksUniformWalk;
    case Placer::kAccept:
      return placeto ? std::span<const OrderAdviceNode>(kPlacetoAccept) : kLinksAccept;
    case Placer::kList:
      return placeto ? std::span<const OrderAdviceNode>(kPlacetoList) : kLinksList;
    case Placer::kDescent:
      return placeto ? std::span<const OrderAdviceNode>(kPlacetoDescent) : kLinksDescent;
  }
  return {};
}

}  // namespace espalier
