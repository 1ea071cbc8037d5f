#pragma once

// GraphPipe's outer search (arXiv 2406.17145, §4): the least target that some plan keeps. The paper bisects
// the time per sample; here the targets are step times of stages that probes have met, and the end, where
// none may be better, is proved by a probe one nanosecond below the answer.

#include <cstdint>
#include <optional>
#include <vector>

#include "espalier/planners/pipeline/graphpipe_search.h"

namespace espalier::internal {

// The plan with the least bottleneck, of those one with the fewest samples in flight. About log2(stage
// prices) probes, one at a time, so that several searches may be compared between them.
class Bisection {
 public:
  // Refers to the search. Ends where no plan's bottleneck is less by more than so many thousandths; 0: by a
  // nanosecond.
  explicit Bisection(PipeSearch& search, std::int64_t slack_per_mille = 0);

  // One probe. Not after the end.
  void step();
  // At the least, or where nothing fits, or the search was ended.
  bool ended() const;

  // No plan's bottleneck is below this, ns of a step.
  std::int64_t low() const { return low_; }
  // Of the probes so far; none if nothing fits.
  const std::optional<PipePlan>& best() const { return best_; }

 private:
  std::int64_t next_target() const;

  PipeSearch& search_;
  std::int64_t slack_per_mille_;
  std::int64_t low_;
  std::int64_t rise_;  // the next target on the way up from what no plan can beat
  int risen_ = 0;
  bool nothing_fits_ = false;
  std::optional<PipePlan> best_;
};

// Plans worth a look beside the one given, which is the fastest: up to 10 % slower, and those that are less
// deep, each the fastest of its depth within 2 %. None takes longer for one stage than the best of them is
// estimated to take for all.
std::vector<PipePlan> other_plans(PipeSearch& search, const PipePlan& fastest);

}  // namespace espalier::internal
