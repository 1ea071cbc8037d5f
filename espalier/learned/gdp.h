#pragma once

// GDP (Zhou et al., arXiv 1910.01578) as a placer: an answer of a policy that was trained on other graphs
// (zero-shot), the same after some updates on this one (fine-tuned), or a fresh policy that learns this graph
// alone (GDP-one).
//
// Deviations, and what of the paper is known: docs/planners/learned.md.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "espalier/learned/learner.h"
#include "espalier/planners/placement/placer.h"

namespace espalier::placement {

// What a fresh policy has that learns one graph: groups that it draws and levels of schedule priority. Both
// make it better on most graphs (docs/planners/learned.md).
PolicyShape shape_for_one_graph();

struct GdpOptions {
  TaskOptions task = {.tries_orders = true};
  const Policy* policy = nullptr;  // trained before; null: a fresh one
  // Of a fresh policy. One that was trained before gets its heads for groups and levels, where it has none,
  // if it learns this graph for long (kLongTuning).
  PolicyShape shape = shape_for_one_graph();
  std::uint64_t updates = 400;  // on this graph; 0 with a trained policy: its answer as it is
  // But for `updates`. The best so far takes part in each update: an answer that is better than what a policy
  // mostly draws is worth imitating.
  LearningOptions learning = {.repeat_best = true};
  // Learning ends after a fifth of its updates where the best takes more than a twentieth longer than this: a
  // search that has a better start has more of the calls.
  std::optional<Duration> to_beat = {};
  std::size_t samples = 32;  // of an answer, beside the most probable placement
  // Called after each update; may be empty.
  std::function<void(const LearningPoint&)> told = {};
};

// How many clusters a policy places: 256, and 384 from eight devices on.
std::size_t usual_clusters(std::size_t devices);

// A placer's options for this input: its order, and the usual clusters where nobody said how many.
TaskOptions task_options(const PlacerInput& input, TaskOptions options);

// From so many updates on a trained policy that learns a graph pays for new heads and for finding out by
// which order it learns: it does so for a quarter of the updates by each, and for the rest by the better one.
// With fewer it learns by that in which its answer was better.
inline constexpr std::uint64_t kLongTuning = 100;

// The best that was judged and fits: a trained policy answers (ask), learns where it is to, and answers
// again; a fresh one finds out by which order it learns (order_trial.h). `estimate` is the engine's step, by
// `orders`. Takes a state for each simulator call; learns as long as there are any left.
Placed gdp(const PlacerInput& input, const GdpOptions& options, Context& context);

// The shortest step of those that fit, by any of the orders.
std::optional<Duration> best_step(const Instance& instance, const Rules& rules,
                                  std::span<const DeviceOrders> orders,
                                  std::span<const Assignment> assignments, ThreadPool* pool);

// The search of placements (search_placer.h) that begins with what gdp() finds too. A policy that learns has
// to beat what placers find.
Placed gdp_search(const PlacerInput& input, const GdpOptions& options, Context& context);

// What a policy answers for a task: the best of some samples and the most probable placement, those that do
// not fit repaired, each judged by each of the tasks, which differ in what devices run by only; a policy that
// is told the order (PolicyShape::told_order) has samples of its own for each. samples + 1 simulator calls
// for each task.
struct PolicyAnswer {
  std::optional<Sample> best;  // that fits
  std::size_t by = 0;          // the task by which it is best
  Sample most_probable;        // as the policy has it, whether it fits or not, by the first task
};
PolicyAnswer ask(const Policy& policy, std::span<const PlacementTask* const> tasks, std::size_t samples,
                 std::uint64_t seed, ThreadPool* pool);

}  // namespace espalier::placement
