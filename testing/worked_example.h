#pragma once

// The worked example of the design, and the first golden: two towers and a head, three devices, four
// micro-batches. Forward/backward: each tower 2/4 ms, the head 1/2 ms, each message 0.5 ms of latency,
// unlimited bandwidth, no endpoint cost. No parameters; every tensor is 1 MiB and kept for backward.
//
//   graph pipeline                                chain
//   stage img  dev0 { img }                       stage img  dev0 { img }
//   stage txt  dev1 { txt }                       stage txt  dev1 { txt }        after img
//   stage head dev2 { sims loss } after img txt   stage head dev2 { sims loss }  after txt
//
// Simulated: 26 ms for the graph pipeline, 34 ms for the chain with tokens both ways.

#include <cstdint>
#include <string_view>

#include "espalier/cluster/cluster.h"
#include "espalier/plan/staged_model.h"

namespace espalier::testing {

enum class WorkedExample : std::uint8_t { kGraphPipeline, kChain };

struct WorkedExampleParts {
  StagedModel model;
  Cluster cluster;  // dev0, dev1, dev2
};

// `tokens` says what the chain's stage edge img → txt carries: under kNone nothing, so that only the orders
// are those of the chain. The graph pipeline has no such edge.
WorkedExampleParts worked_example(WorkedExample which, TokenRule tokens = TokenRule::kBothWays);

// The compute orders that the design prints for it.
std::string_view worked_example_orders(WorkedExample which);

}  // namespace espalier::testing
