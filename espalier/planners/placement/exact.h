#pragma once

// The best placement of a small instance, by branch and bound over units.
//
// Units are placed one after the other, those with most work first. A partial placement is left where no way
// to complete it can be shorter than the best that is known:
//  - its devices lack memory already;
//  - a device has more work than that, or the work of all, weighed as in placement_bounds.h;
//  - the critical path is longer: each task on each device that its unit may still have, with messages where
//    the devices of two tasks differ.
// A complete one is judged by the engine, cut off at the best.
//
// Devices that are equal in all (kind, memory, ways, who may stand there) are taken in one order only, where
// the engine cannot tell them apart: messages never wait for each other, or not across devices.

#include <vector>

#include "espalier/planners/placement/placer.h"

namespace espalier::placement {

struct ExactOptions {
  std::vector<Assignment> starts = {};  // whose best is the first to beat
};

struct ExactPlacement {
  Placed placed;
  bool complete = false;  // all was looked at: `placed` is the best, or it is proven that nothing fits
};

// Takes a state for each partial and each complete placement that is looked at; starts too. Where the budget
// ends first, `placed` is the best until then. O(devices^units · (tasks · devices² + evaluation)) at worst:
// for up to 12 units or so. Listed orders are not for this.
ExactPlacement exact_placement(const Engine& engine, const ExactOptions& options, Context& context);

// By device: the smallest device that it may be exchanged with under the rules, itself where there is none.
std::vector<DeviceId> interchangeable(const Instance& instance, const Rules& rules);

}  // namespace espalier::placement
