#include "espalier/learned/gdp.h"

#include <utility>

#include "espalier/base/rng.h"
#include "espalier/learned/varied_samples.h"
#include "espalier/planners/placement/search_placer.h"

namespace espalier::placement {

std::size_t usual_clusters(std::size_t devices) {
  return devices < 8 ? 256 : 384;
}

TaskOptions task_options(const PlacerInput& input, TaskOptions options) {
  options.order = input.order;
  if (options.clusters.clusters == ClusterOptions().clusters)
    options.clusters.clusters = usual_clusters(input.instance.devices());
  return options;
}

PolicyAnswer ask(const Policy& policy, const PlacementTask& task, std::size_t samples, std::uint64_t seed,
                 ThreadPool* pool) {
  const std::vector<float> probability = policy.probabilities(task.input());
  const std::size_t devices = task.input().devices;
  std::vector<Assignment> drawn = varied_samples(task, probability, samples, seed);
  PolicyAnswer answer;
  answer.most_probable = judge(task, {most_probable(probability, devices)}, Repairs::kNone, nullptr).front();
  drawn.push_back(answer.most_probable.assignment);
  for (Sample& sample : judge_units(task, std::move(drawn), Repairs::kInvalid, pool)) {
    if (!sample.evaluated.fits) continue;
    if (!answer.best || sample.evaluated.time < answer.best->evaluated.time) answer.best = std::move(sample);
  }
  return answer;
}

Placed gdp(const PlacerInput& input, const GdpOptions& options, Context& context) {
  const std::uint64_t states = context.states;
  const PlacementTask task(input.graph, input.instance, task_options(input, options.task));
  Policy policy = options.policy ? options.policy->clone() : Policy(options.shape, input.seed);
  std::optional<Sample> best;
  const auto keep = [&](std::optional<Sample> sample) {
    if (sample && (!best || sample->evaluated.time < best->evaluated.time)) best = std::move(sample);
  };
  const auto answer = [&](std::uint64_t stream) {
    context.take_states(options.samples + 1);  // the answer is worth having where they are not left, too
    return ask(policy, task, options.samples, stream_key(input.seed, {stream}), context.pool).best;
  };
  if (options.policy) keep(answer(6));
  if (options.updates > 0) {
    LearningOptions learning = options.learning;
    learning.seed = input.seed;
    learning.updates = options.updates;
    {
      Learner learner(policy, {&task}, learning);
      if (best) learner.know(0, *best);
      while (learner.updates() < options.updates && learner.update(context)) {
        if (options.told) options.told(learner.progress(0).curve.back());
        context.report(static_cast<double>(learner.updates()) / static_cast<double>(options.updates));
        const std::optional<Sample>& own = learner.progress(0).best;  // what it was told of, too
        const bool behind =
            options.to_beat && (!own || own->evaluated.time > *options.to_beat + *options.to_beat / 20);
        if (behind && learner.updates() * 5 >= options.updates) break;
      }
      keep(learner.progress(0).best);
    }
    keep(answer(7));
  }
  Placed placed;
  placed.stats = {context.states - states, context.states - states};
  if (!best) {
    placed.why = "no placement of the policy fits, nor can one be repaired";
    return placed;
  }
  placed.estimate = best->evaluated.time;
  if (!best->levels.empty()) placed.orders = orders_of(task, best->levels);
  placed.assignment = std::move(best->assignment);
  return placed;
}

std::optional<Duration> best_step(const Engine& engine, std::span<const Assignment> assignments,
                                  ThreadPool* pool) {
  std::optional<Duration> best;
  for (const Evaluated& seen : engine.evaluate_all(assignments, pool)) {
    if (seen.fits && !seen.deadlock && (!best || seen.time < *best)) best = seen.time;
  }
  return best;
}

Placed gdp_search(const PlacerInput& input, const GdpOptions& options, Context& context) {
  const std::uint64_t states = context.states;
  GdpOptions how = options;
  if (how.updates > 0) {
    how.to_beat = best_step(Engine(input.instance, how.task.rules),
                            placer_starts(input, how.task.rules, context), context.pool);
  }
  Placed answer = gdp(input, how, context);
  SearchPlacerOptions search{.rules = options.task.rules};
  if (answer.assignment) search.starts.push_back(std::move(*answer.assignment));
  Placed placed = search_placer(input, search, context);
  placed.stats = {context.states - states, context.states - states};
  return placed;
}

}  // namespace espalier::placement
