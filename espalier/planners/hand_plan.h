#pragma once

// The best plan with stages that people chose: devices, replicas and micro-batch of what they left open.

#include <vector>

#include "espalier/planners/hand_split.h"
#include "espalier/planners/planner.h"

namespace espalier {

struct HandOptions {
  OrderRule schedule = ScheduleKind::kOneFOneB;
};

// Each stage stands as it is, on its own devices if it has any; no others are chosen for them, and no stage
// that is open gets them. Open stages deal the other devices among themselves, with replicas where that is
// faster; if there are fewer devices than open stages, each stage has one device and shares it. Devices of
// one group, kind and memory that no link names are alike. For each micro-batch all deals are judged if there
// are at most 4096 of them, which is exact; else a local search from two of them moves, adds, drops and swaps
// devices until nothing helps. `stages` as parse_hand_split gives them.
Outcome plan_by_hand(const Problem& problem, const std::vector<HandStage>& stages, const HandOptions& options,
                     Context& context);

}  // namespace espalier
