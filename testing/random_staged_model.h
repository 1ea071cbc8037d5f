#pragma once

// Random staged models with a cluster, for properties of schedules, simulator and traces. Everything in them
// passes check_staged_model. Same Rng state, same result.

#include "espalier/base/rng.h"
#include "espalier/cluster/cluster.h"
#include "espalier/plan/staged_model.h"

namespace espalier::testing {

struct RandomModelOptions {
  std::size_t max_stages = 5;
  std::uint32_t max_micro_batches = 6;
  bool replicas = true;        // several replicas, odd shares; tensor-parallel pairs
  bool shared_devices = true;  // devices that host several stages
  bool unequal_sizes = false;  // some stages have twice the micro-batches; limits are then the whole share
  bool random_limits = false;  // any in-flight limit, not that of the rule
  bool contention = true;      // links that carry one transfer at a time, endpoint costs
};

struct RandomModel {
  StagedModel model;
  Cluster cluster;
};
RandomModel random_staged_model(Rng& rng, const RandomModelOptions& options = {});

// What the models above lack: the overhead of an action, what only I needs, any number of receive slots.
void add_halves_and_slots(Rng& rng, StagedModel& model);

}  // namespace espalier::testing
