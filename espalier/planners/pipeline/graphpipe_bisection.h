#pragma once

// GraphPipe's outer search (arXiv 2406.17145, §4): the least target that some plan keeps. The paper bisects
// the time per sample; here the targets are step times of stages that probes have met, and the end is proved
// by a probe one nanosecond below the answer.

#include <optional>
#include <vector>

#include "espalier/planners/pipeline/graphpipe_search.h"

namespace espalier::internal {

// The plan with the least bottleneck, of those one with the fewest samples in flight. None if nothing fits,
// or the search was ended before it found any. About log2(stage prices) probes.
std::optional<PipePlan> least_bottleneck(PipeSearch& search);

// Plans worth a look beside the one given, which is the fastest: up to 10 % slower, and those that are less
// deep, each the fastest of its depth within 2 %. None takes longer for one stage than the best of them is
// estimated to take for all.
std::vector<PipePlan> other_plans(PipeSearch& search, const PipePlan& fastest);

}  // namespace espalier::internal
