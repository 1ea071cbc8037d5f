// Written by bench/traversal_orders/fit from bench/traversal_orders/results.csv; not by hand.

#include "espalier/app/order_advice.h"

// clang-format off
namespace espalier {
namespace {

constexpr OrderAdviceNode kPlacetoUniformWalk[] = {
    {.order = TraversalOrder::kInTurn, .confidence = 0.44, .other = 0.0265, .worst = 0.0866, .graphs = 71},
};

constexpr OrderAdviceNode kPlacetoAccept[] = {
    {.confidence = 0.21, .other = 0.0185, .worst = 0.0384, .graphs = 71},
};

constexpr OrderAdviceNode kPlacetoList[] = {
    {.order = TraversalOrder::kInTurn, .confidence = 0.75, .other = 0.0766, .worst = 0.1866, .graphs = 71},
};

constexpr OrderAdviceNode kPlacetoDescent[] = {
    {.confidence = 0.01, .other = 0.0491, .worst = 0.1197, .graphs = 71},
};

constexpr OrderAdviceNode kLinksUniformWalk[] = {
    {.order = TraversalOrder::kInTurn, .confidence = 0.44, .other = 0.0198, .worst = 0.0749, .graphs = 71},
};

constexpr OrderAdviceNode kLinksAccept[] = {
    {.confidence = 0.21, .other = 0.0204, .worst = 0.0420, .graphs = 71},
};

constexpr OrderAdviceNode kLinksList[] = {
    {.order = TraversalOrder::kInTurn, .confidence = 0.66, .other = 0.0501, .worst = 0.1530, .graphs = 71},
};

constexpr OrderAdviceNode kLinksDescent[] = {
    {.order = TraversalOrder::kTopoLifo, .confidence = 0.44, .other = 0.0166, .worst = 0.1421, .graphs = 71},
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
