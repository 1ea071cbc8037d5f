#pragma once

// Random orders for a staged model, made by a random run: at each moment any action whose inputs are there
// may be next. So compute orders and data never wait in a circle; slots and channels may, which
// check_schedule says. It shares nothing with the rules of the product.

#include "espalier/base/rng.h"
#include "espalier/plan/staged_model.h"

namespace espalier::testing {

struct RandomOrderOptions {
  bool split = false;        // some micro-batches have I and W in place of B
  bool early_ends = true;    // A, T and U stand as soon as the run comes to them; else they are left out
  bool depth_first = false;  // prefers backwards, so that few micro-batches are in flight
};
OrderLists random_orders(Rng& rng, const StagedModel& model, std::size_t devices,
                         const RandomOrderOptions& options = {});

// One small change: a step moves, goes, comes twice, becomes another, or changes its list.
void mutate_orders(Rng& rng, const StagedModel& model, OrderLists& lists);

}  // namespace espalier::testing
