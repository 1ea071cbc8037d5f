#include "espalier/planners/pipeline/graphpipe_bisection.h"

#include <algorithm>
#include <utility>

namespace espalier::internal {
namespace {

using Prefer = PipeSearch::Prefer;

constexpr std::size_t kManyDevices = 128;

constexpr std::int64_t kAny = std::int64_t{1} << 60;
constexpr int kRises = 8;  // before any target will do

}  // namespace

Bisection::Bisection(PipeSearch& search, std::int64_t slack_per_mille)
    : search_(search),
      slack_per_mille_(slack_per_mille),
      low_(search.least_possible()),
      rise_(low_ + low_ / 8) {}

bool Bisection::ended() const {
  if (nothing_fits_ || search_.ended()) return true;
  return best_ && best_->bottleneck - low_ <= best_->bottleneck / 1000 * slack_per_mille_;
}

// Of the step times met so far the one in the middle of those in [low, best), or best - 1 if there is none:
// a plan's bottleneck is a step time, so if there is none in between, best - 1 decides.
std::int64_t Bisection::next_target() const {
  std::vector<std::int64_t> between;
  for (const std::int64_t time : search_.times()) {
    if (time >= low_ && time < best_->bottleneck) between.push_back(time);
  }
  if (between.empty()) return best_->bottleneck - 1;
  const auto middle = between.begin() + static_cast<std::ptrdiff_t>(between.size() / 2);
  std::nth_element(between.begin(), middle, between.end());
  return *middle;
}

void Bisection::step() {
  const bool rises = !best_;
  const std::int64_t target = !rises ? next_target() : risen_ < kRises ? rise_ : kAny;
  std::optional<PipePlan> plan = search_.probe(target, Prefer::kFewSamples);
  if (search_.ended()) return;
  if (plan) {
    best_ = std::move(plan);
  } else if (target == kAny) {
    nothing_fits_ = true;
  } else {
    low_ = target + 1;
  }
  if (rises) {
    ++risen_;
    rise_ = target + target / 2;
  }
}

std::vector<PipePlan> other_plans(PipeSearch& search, const PipePlan& fastest) {
  std::vector<PipePlan> plans;
  std::int64_t best = fastest.estimate();
  const auto add = [&](std::optional<PipePlan> plan) {
    if (!plan) return;
    best = std::min(best, plan->estimate());
    plans.push_back(*std::move(plan));
  };
  for (const std::int64_t per_mille : {0, 10, 40, 100}) {
    if (per_mille > 10 && search.devices() > kManyDevices) break;  // probes far from the least take long
    const std::int64_t target = fastest.bottleneck + fastest.bottleneck / 1000 * per_mille;
    add(search.probe(target, Prefer::kShallow));  // those with the fewest samples were never faster
  }
  if (plans.empty() || search.ended()) return plans;
  std::int64_t depth = plans.front().depth, low = fastest.bottleneck;
  for (const PipePlan& plan : plans) depth = std::min(depth, plan.depth);
  while (depth > 1 && low < best && !search.ended()) {
    // Up until a plan is less deep, then down to where that begins.
    std::optional<PipePlan> found;
    while (low < best && !search.ended()) {
      const std::int64_t high = std::min(best, low + low / 12);
      found = search.probe(high, Prefer::kShallow);
      if (found && found->depth < depth) break;
      low = high;
      found.reset();
    }
    if (!found) break;
    while (found->bottleneck - low > low / 50 && !search.ended()) {
      const std::int64_t middle = low + (found->bottleneck - low) / 2;
      std::optional<PipePlan> plan = search.probe(middle, Prefer::kShallow);
      if (plan && plan->depth <= found->depth) {
        found = std::move(plan);
      } else {
        low = middle;
      }
    }
    depth = found->depth;
    low = found->bottleneck;
    add(std::move(found));
  }
  return plans;
}

}  // namespace espalier::internal
