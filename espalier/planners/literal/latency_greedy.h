#pragma once

// The greedy planner of dnn-partitioning's program for the latency of one sample (Tarnawski et al., NeurIPS
// 2020; latency-greedy). It looks at no cost at all.
//
// Colours that wait for each other are one block. Blocks are walked in a topological order, of those that are
// ready the one that became ready last; each goes to the accelerator in use as long as its memory lasts, then
// the next accelerator is begun. A block that is larger than an accelerator's memory goes to the CPU where it
// would begin one, as all do once there is none left.

#include <cstdint>
#include <optional>

#include "espalier/frontend/published.h"

namespace espalier::literal {

struct LatencyGreedyOptions {
  std::optional<std::int64_t> accelerators = {};  // instead of the file's
  std::optional<double> memory = {};              // bytes per accelerator, instead of the file's
};

// A placement on the accelerators in use, and on a CPU behind them if it is needed; price_latency says what
// it takes. Which nodes may run on accelerators is not looked at, as there. Throws InputError where edges
// form a cycle. O(blocks · edges).
MsrPlacement greedy_placement(const MsrProfile& profile, const LatencyGreedyOptions& options = {});

}  // namespace espalier::literal
