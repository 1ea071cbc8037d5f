#pragma once

// What a step costs, where the cluster says what an hour of its devices costs: the time of the step times the
// price of all devices that the plan uses. A device that has no part of the plan costs nothing (AutoDeep,
// ToN'24). Prices are in the currency of the cluster's.

#include <cstddef>
#include <optional>

#include "espalier/base/units.h"
#include "espalier/cluster/cluster.h"
#include "espalier/plan/staged_model.h"

namespace espalier {

struct StepPrice {
  std::size_t devices = 0;  // that the plan uses
  double hour = 0;          // of all of them
  double step = 0;
  double million_samples = 0;
  friend bool operator==(const StepPrice&, const StepPrice&) = default;
};

// Of a plan whose step takes `iteration` for `batch` samples; none where the cluster has no prices.
// O(stages · replicas · log devices).
std::optional<StepPrice> step_price(const Cluster& cluster, const StagedModel& staged, Duration iteration,
                                    BatchSize batch);

}  // namespace espalier
