#pragma once

// Stages with equally many replicas each, on neighbours of a row, as planners lay them that take the number
// of stages as given: p stages of r devices are r pipelines side by side.
//
//     row  0 1 2 3 4 5      p = 3: 0 1 | 2 3 | 4 5      p = 2: 0 1 2 | 3 4 5

#include <cstdint>
#include <functional>
#include <vector>

#include "espalier/planners/pipeline/chain.h"
#include "espalier/planners/planner.h"

namespace espalier {

using DeviceGroups = std::vector<std::vector<DeviceId>>;  // by stage

// For each number of stages that divides the row, ascending, as far as there are blocks for the stages and
// micro-batches for the replicas.
std::vector<DeviceGroups> equal_groups(const std::vector<DeviceId>& row, std::size_t blocks,
                                       std::int64_t micro_batches);

// A chain of a problem without pins, and groups of devices for it.
struct GroupedChain {
  const Chain& chain;
  const DeviceGroups& groups;
  std::int64_t micro_batches;
};

// Every chain of a problem in graph order, on every row of device_rows and in every number of stages, until
// somebody ends the search. A chain without blocks is left out.
void for_each_grouped_chain(const Problem& problem, const Context& context,
                            const std::function<void(const GroupedChain&)>& visit);

// Of the group's slowest device, one micro-batch on one replica, of blocks [first, last).
struct GroupTimes {
  Duration forward, backward;
};
GroupTimes group_times(const Chain& chain, const std::vector<DeviceId>& group, std::size_t first,
                       std::size_t last);

// The stages of a cut chain, each behind the one before it: ends of stages, the last the number of blocks.
std::vector<StageDraft> grouped_drafts(const GroupedChain& grouped, const std::vector<std::size_t>& ends);

}  // namespace espalier
