#pragma once

// Which devices the stages of an answer stand on: the partitioner only counts them.

#include <cstddef>
#include <vector>

#include "espalier/cluster/cluster.h"
#include "espalier/planners/pipeline/device_row.h"
#include "espalier/planners/pipeline/graphpipe_search.h"

namespace espalier::internal {

// By stage: runs of the row as the answer has them, one behind the other in the order of the stages.
std::vector<std::vector<DeviceId>> devices_in_a_row(const PipePlan& plan, const DeviceRow& row);

// By stage: the largest groups of replicas first, each within the host that has least room beyond it; a group
// that fits into no host takes the emptiest hosts. For rows of devices that are alike. O(stages · hosts).
std::vector<std::vector<DeviceId>> devices_by_host(const PipePlan& plan, const DeviceRow& row);

}  // namespace espalier::internal
