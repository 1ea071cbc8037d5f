#pragma once

// GraphPipe's partitioner and micro-batch scheduler (Jeon et al., ASPLOS'25, arXiv 2406.17145, §4 and §5):
// stages that form a DAG, the least time of the slowest one, as few micro-batches in flight as that takes.

#include <cstddef>
#include <cstdint>

#include "espalier/planners/planner.h"

namespace espalier {

struct GraphPipeOptions {
  enum class Choice : std::uint8_t {
    kLiteral,    // the paper's: the least bottleneck, of equals the fewest samples in flight; its memory rule
    kSimulated,  // the fastest simulated of the plans worth a try: see below
  } choice = Choice::kSimulated;
  enum class MicroBatches : std::uint8_t {
    kUniform,   // one size for all stages: what all published figures use
    kPerStage,  // each stage its own; runs where no operator mixes samples (docs/semantics.md, micro-batches)
  } micro_batches = MicroBatches::kUniform;
  std::uint32_t most_group =
      1;  // k of kFkB that is tried for each stage of the best plan: 1, 2, 4 … up to this
  OrderRule schedule = ScheduleKind::kOneFOneB;
  std::size_t most_replicas = kMaxMicroBatches;  // of a stage

  // Shape of the space (docs/graphpipe.md, its limits).
  std::size_t most_items = 64;               // pieces that one run is cut into
  std::size_t most_proposals = 64;           // plans that are simulated
  std::uint32_t least_fork_per_mille = 750;  // of a device's even share: work beside a fork's heaviest branch
  std::uint32_t light_branch_per_mille = 60;  // likewise: a lighter branch joins another one
};

// Minimises the largest step time of a stage: over its replicas, micro-batches × (forward, backward, actions,
// messages' endpoints) + update + all-reduce, or its largest transfer, if that takes longer. kLiteral's
// answer is exact in the space of docs/graphpipe.md: no plan of it has a smaller one. Else it is within 0.4
// %, since the simulator chooses among it and others.
//
// What a stage may be: a piece of a run, whole branches together, the end of one branch with what follows the
// join, what precedes a fork with the beginning of one branch. Replicas: each number that makes the largest
// share smaller.
//
// Beyond the paper: devices in a row may differ in kind and memory (device_rows); pins; whole micro-batches
// go to replicas, so the paper's micro-batch of a stage is here that of all its replicas together; plans that
// no other beats in (bottleneck, depth) are proposed as well, each on two layouts of devices, and simulated;
// equal parts of a cluster of more than 64 devices are planned too, and repeated (planners/repeated.h).
// kUnsupported where a graph has nothing to plan; a chain has chain plans.
//
// A state is one entry of the tables of a probe; bisection needs up to some 20 probes for each micro-batch
// size, fewer for those that can have no plan as short as another's. A
// round of searches takes at most 1.5 million states of the budget, and 150 more for each operator.
Outcome graphpipe(const Problem& problem, const GraphPipeOptions& options, Context& context);

}  // namespace espalier
