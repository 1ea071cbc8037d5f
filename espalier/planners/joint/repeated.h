#pragma once

// Plans of large clusters from plans of their parts: a pipeline on a part of the cluster, and the same beside
// it on each equal part, which is data parallelism over whole pipelines. Copies meet in their sums of
// gradients alone.

#include <optional>
#include <vector>

#include "espalier/cluster/equal_parts.h"
#include "espalier/planners/planner.h"

namespace espalier::joint {

// The training of one part: its share of the batch, in those of the micro-batches that divide it. Nothing
// where the batch has no such share.
std::optional<Training> training_of_part(const Training& training, std::size_t parts);

// The plan of one part on all of them: each stage has its replicas in every copy, and of n copies copy c
// takes micro-batch n·j + c where the plan's replica takes j. In flight as before. For plans whose orders
// follow a rule.
PipelinePlan repeated(const PipelinePlan& plan, const EqualParts& parts);

}  // namespace espalier::joint
