#pragma once

// Plans of large clusters from plans of their parts: a pipeline on a part of the cluster, and the same beside
// it on each equal part, which is data parallelism over whole pipelines. Copies meet in their sums of
// gradients alone.

#include <functional>
#include <optional>
#include <vector>

#include "espalier/cluster/equal_parts.h"
#include "espalier/planners/planner.h"

namespace espalier {

// Whether plans of parts can be plans of the problem: a plan to start from, locked stages and pins are of the
// cluster, not of a part; and every stage of a repeated plan has replicas, which some may not have.
bool may_be_divided(const Problem& problem);

// The training of one part: its share of the batch, in those of the micro-batches that divide it. Nothing
// where the batch has no such share.
std::optional<Training> training_of_part(const Training& training, std::size_t parts);

// The plan of one part on all of them: each stage has its replicas in every copy, and of n copies copy c
// takes micro-batch n·j + c where the plan's replica takes j. In flight as before. For plans whose orders
// follow a rule.
PipelinePlan repeated(const PipelinePlan& plan, const EqualParts& parts);

// Plans of the cluster from what `plan` finds for one of its parts: its plan, or the one that came closest,
// the fastest of each other micro-batch, and its other choices, but for those with lists, which cannot be
// repeated. None where the batch has no share for each part.
struct PlansOfParts {
  std::vector<PipelinePlan> plans;
  SearchStats stats;
};
PlansOfParts plans_of_parts(const Problem& problem, const EqualParts& parts,
                            const std::function<Outcome(const Problem&)>& plan);

}  // namespace espalier
