#pragma once

// A searched order for any plan: a chain or a DAG of stages, uneven, replicated, several on a device. It
// begins with what the rules and generators give and improves the best of them by small moves, each judged by
// simulation under the devices' memory:
//   - a step goes to another place in its device's list, as far as micro-batches stay in order;
//   - a B is split into I and W, or an I and its W become one B (not on devices of a tensor-parallel group).
// Moves are drawn at random from a fixed seed, and a step back is accepted now and then, less and less often
// (threshold accepting; Dueck and Scheuer, J. Comput. Phys. 1990). What it returns is never worse than what
// it began with.

#include <cstdint>
#include <string>
#include <vector>

#include "espalier/cluster/cluster.h"
#include "espalier/planners/orders/order_moves.h"
#include "espalier/schedule/stage_line.h"
#include "espalier/sim/evaluator.h"

namespace espalier {

struct OrderSearchOptions {
  // Work: steps of the orders that are judged, or a quarter of their messages where that is more. The search
  // ends when the next order would be more.
  std::uint64_t max_steps = 2'000'000;
  std::uint64_t seed = 1;
  // kNever: neither what it begins with nor any step splits a backward. The model's own orders must not.
  Halves halves = Halves::kMay;
};

struct SearchedOrder {
  std::optional<OrderLists> lists;  // none: no order that it knows runs
  Evaluation evaluation;            // of them; `overflow` if nothing fits
  std::string begun_with;           // the name of the best of those that it began with
  Evaluation beginning;             // of that one
  std::uint64_t judged = 0;         // orders
};
SearchedOrder search_order(const StagedModel& model, const Cluster& cluster,
                           const OrderSearchOptions& options = {});

// What it begins with: the model's own orders, the rules, and the generators that apply; each legal but for
// deadlock.
struct NamedLists {
  std::string name;  // as --schedule takes it; "as planned"
  OrderLists lists;
};
std::vector<NamedLists> known_orders(const StagedModel& model, const Cluster& cluster);

}  // namespace espalier
