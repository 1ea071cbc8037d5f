#include "espalier/planners/pipeline/graphpipe_bisection.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace espalier::internal {
namespace {

using Prefer = PipeSearch::Prefer;

// Of the step times met so far the one in the middle of those in [low, high), or high - 1 if there is none:
// a plan's bottleneck is a step time, so if there is none in between, high - 1 decides.
std::int64_t next_target(const PipeSearch& search, std::int64_t low, std::int64_t high) {
  std::vector<std::int64_t> between;
  for (const std::int64_t time : search.times()) {
    if (time >= low && time < high) between.push_back(time);
  }
  if (between.empty()) return high - 1;
  const auto middle = between.begin() + static_cast<std::ptrdiff_t>(between.size() / 2);
  std::nth_element(between.begin(), middle, between.end());
  return *middle;
}

// The first plan on the way up from what no plan can beat.
std::optional<PipePlan> first_plan(PipeSearch& search, std::int64_t& low) {
  constexpr std::int64_t kAny = std::int64_t{1} << 60;
  std::int64_t target = low + low / 8;
  for (int doubling = 0; doubling < 8; ++doubling) {
    std::optional<PipePlan> plan = search.probe(target, Prefer::kFewSamples);
    if (plan || search.ended()) return plan;
    low = target + 1;
    target += target / 2;
  }
  return search.probe(kAny, Prefer::kFewSamples);
}

}  // namespace

std::optional<PipePlan> least_bottleneck(PipeSearch& search) {
  std::int64_t low = search.least_possible();
  std::optional<PipePlan> best = first_plan(search, low);
  while (best && low < best->bottleneck) {
    const std::int64_t target = next_target(search, low, best->bottleneck);
    std::optional<PipePlan> plan = search.probe(target, Prefer::kFewSamples);
    if (search.ended()) break;
    if (plan) {
      best = std::move(plan);
    } else {
      low = target + 1;
    }
  }
  return best;
}

std::vector<PipePlan> shallower_plans(PipeSearch& search, const PipePlan& fastest, std::size_t most) {
  std::vector<PipePlan> plans;
  const std::int64_t limit = 2 * fastest.bottleneck;
  std::int64_t low = fastest.bottleneck;
  std::optional<PipePlan> best = search.probe(low, Prefer::kShallow);
  if (!best) return plans;
  std::int64_t depth = best->depth;
  if (best->depth < fastest.depth) plans.push_back(*std::move(best));
  while (plans.size() < most && depth > 1 && !search.ended()) {
    // Up until a plan is less deep, then down to where it begins.
    std::int64_t high = low;
    std::optional<PipePlan> found;
    while (high < limit && !search.ended()) {
      high = std::min(limit, high + high / 12);
      found = search.probe(high, Prefer::kShallow);
      if (found && found->depth < depth) break;
      low = high;
      found.reset();
    }
    if (!found) break;
    high = found->bottleneck;
    while (high - low > high / 100 && !search.ended()) {
      const std::int64_t middle = low + (high - low) / 2;
      std::optional<PipePlan> plan = search.probe(middle, Prefer::kShallow);
      if (plan && plan->depth <= found->depth) {
        high = plan->bottleneck;
        found = std::move(plan);
      } else {
        low = middle;
      }
    }
    depth = found->depth;
    low = found->bottleneck;
    plans.push_back(*std::move(found));
  }
  return plans;
}

}  // namespace espalier::internal
