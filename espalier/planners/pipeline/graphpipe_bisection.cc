#include "espalier/planners/pipeline/graphpipe_bisection.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace espalier::internal {
namespace {

using Prefer = PipeSearch::Prefer;

constexpr std::size_t kManyDevices = 128;

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
    add(search.probe(target, Prefer::kShallow));
    if (per_mille > 0) add(search.probe(target, Prefer::kFewSamples));
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
