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

// Plans that are less deep and slower, each the fastest within 1 % of its depth that probes find: beside the
// one given, which is the fastest. At most `most`, none above twice its bottleneck. Descending depth.
std::vector<PipePlan> shallower_plans(PipeSearch& search, const PipePlan& fastest, std::size_t most);

}  // namespace espalier::internal
