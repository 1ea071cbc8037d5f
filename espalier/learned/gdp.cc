#include "espalier/learned/gdp.h"

#include <deque>
#include <utility>

#include "espalier/base/rng.h"
#include "espalier/learned/order_trial.h"
#include "espalier/learned/varied_samples.h"
#include "espalier/planners/placement/ranks.h"
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

PolicyAnswer ask(const Policy& policy, std::span<const PlacementTask* const> tasks, std::size_t samples,
                 std::uint64_t seed, ThreadPool* pool) {
  PolicyAnswer answer;
  std::vector<Assignment> drawn;
  const bool told = !policy.is_table() && policy.shape().told_order;
  for (std::size_t by = 0; by < tasks.size(); ++by) {
    const PlacementTask& task = *tasks[by];
    if (by == 0 || told) {
      const std::vector<float> probability = policy.probabilities(task.input());
      drawn = varied_samples(task, probability, samples, seed);
      Sample likely =
          judge(task, {most_probable(probability, task.input().devices)}, Repairs::kNone, nullptr).front();
      drawn.push_back(likely.assignment);
      if (by == 0) answer.most_probable = std::move(likely);
    }
    for (Sample& sample : judge_units(task, drawn, Repairs::kInvalid, pool)) {
      if (!sample.evaluated.fits) continue;
      if (answer.best && answer.best->evaluated.time <= sample.evaluated.time) continue;
      answer.best = std::move(sample);
      answer.by = by;
    }
  }
  return answer;
}

namespace {

// Learns a task with a policy, and keeps the best.
class GdpRun {
 public:
  // `updates`: of this run.
  GdpRun(const PlacerInput& input, const GdpOptions& options, std::uint64_t updates, Context& context)
      : input_(input), options_(options), updates_(updates), context_(context) {}

  void ask_policy(const Policy& policy, std::span<const PlacementTask* const> tasks, std::uint64_t stream) {
    // The answer is worth having where the states are not left, too.
    context_.take_states(tasks.size() * (options_.samples + 1));
    PolicyAnswer answer =
        ask(policy, tasks, options_.samples, stream_key(input_.seed, {stream}), context_.pool);
    if (answer.best) keep(*answer.best, *tasks[answer.by]);
  }

  void learn(Policy& policy, const PlacementTask& task) {
    Learner learner(policy, {&task}, learning(updates_));
    if (best_ && task_ == &task) learner.know(0, *best_);
    advance(learner, updates_);
    if (learner.progress(0).best) keep(*learner.progress(0).best, task);
  }

  void tune(const Policy& trained, std::span<const PlacementTask* const> tasks) {
    const std::uint64_t updates = std::min(updates_, context_.left() / options_.learning.rollouts);
    if (updates >= kLongTuning && tasks.size() > 1) return tune_for_long(trained, tasks, updates);
    const PlacementTask* const task = task_ ? task_ : tasks.front();
    Policy policy = trained.clone();
    learn(policy, *task);
    ask_policy(policy, {&task, 1}, 7);
  }

  LearningOptions learning(std::uint64_t updates) const {
    LearningOptions learning = options_.learning;
    learning.seed = input_.seed;
    learning.updates = updates;
    return learning;
  }

  Placed result() const {
    Placed placed;
    if (!best_) {
      placed.why = "no placement of the policy fits, nor can one be repaired";
      return placed;
    }
    placed.estimate = best_->evaluated.time;
    placed.orders = orders_of(*task_, best_->levels);
    placed.assignment = best_->assignment;
    return placed;
  }

 private:
  void keep(const Sample& sample, const PlacementTask& task) {
    if (best_ && best_->evaluated.time <= sample.evaluated.time) return;
    best_ = sample;
    task_ = &task;
  }

  static constexpr double kTuningTrial = 0.25;  // of all updates by each order, when tuned for long
  static constexpr double kTuningEntropy = 0.01;

  struct Tuned {
    Tuned(Policy learns, const PlacementTask& of, const LearningOptions& how)
        : policy(std::move(learns)), task(of), learner(policy, {&of}, how) {}
    // Score of the best of its rollouts, what a rollout is worth on average where none fits; smaller is
    // better.
    double worth() const {
      const TaskProgress& own = learner.progress(0);
      if (own.best) return score(task, own.best->evaluated);
      return own.curve.empty() ? 0 : own.curve.back().mean;
    }
    Policy policy;
    const PlacementTask& task;
    Learner learner;
  };

  // What a policy answers does not decide by which order it learns: a split between layers may be best by one
  // and hardly get better there, while rollouts by the other are behind it at first. Its own rollouts do, and
  // it takes no part in them: who imitates such a split stays with it.
  void tune_for_long(const Policy& trained, std::span<const PlacementTask* const> tasks,
                     std::uint64_t updates) {
    const std::uint64_t trial = part_of(updates, kTuningTrial);
    LearningOptions how = learning(updates - (tasks.size() - 1) * trial);
    how.restart = trial;
    how.entropy = std::max(how.entropy, kTuningEntropy);
    std::deque<Tuned> all;
    Tuned* best = nullptr;
    for (const PlacementTask* const task : tasks) {
      Tuned& own = all.emplace_back(trained.with_heads(options_.shape, input_.seed), *task, how);
      advance(own.learner, trial);
      if (!best || own.worth() < best->worth()) best = &own;
    }
    advance(best->learner, how.updates);
    for (const Tuned& own : all) {
      if (own.learner.progress(0).best) keep(*own.learner.progress(0).best, own.task);
    }
    const PlacementTask* const task = &best->task;
    ask_policy(best->policy, {&task, 1}, 7);
  }

  // Until the learner has made so many updates, no calls are left, or it is behind what is to be beaten.
  void advance(Learner& learner, std::uint64_t updates) {
    while (learner.updates() < updates && learner.update(context_)) {
      if (options_.told) options_.told(learner.progress(0).curve.back());
      context_.report(static_cast<double>(++made_) / static_cast<double>(updates_));
      const std::optional<Sample>& own = learner.progress(0).best;  // what it was told of, too
      const bool behind =
          options_.to_beat && (!own || own->evaluated.time > *options_.to_beat + *options_.to_beat / 20);
      if (behind && learner.updates() * 5 >= updates_) break;
    }
  }

  const PlacerInput& input_;
  const GdpOptions& options_;
  const std::uint64_t updates_;
  Context& context_;
  std::uint64_t made_ = 0;  // updates, of all learners
  std::optional<Sample> best_;
  const PlacementTask* task_ = nullptr;
};

Placed of_fresh_policy(const PlacerInput& input, const GdpOptions& options, Context& context) {
  const auto learn = [&](const TaskOptions& by, double part, Context& own) {
    const PlacementTask task(input.graph, input.instance, by);
    Policy policy(options.shape, input.seed);
    GdpRun run(input, options, part_of(options.updates, part), own);
    run.learn(policy, task);
    const PlacementTask* const tasks = &task;
    run.ask_policy(policy, {&tasks, 1}, 7);
    return run.result();
  };
  return by_better_order(input.instance, task_options(input, options.task), context, learn);
}

Placed of_trained_policy(const PlacerInput& input, const GdpOptions& options, Context& context) {
  const PlacementTask first(input.graph, input.instance, task_options(input, options.task));
  std::deque<PlacementTask> by_order;
  if (options.task.tries_orders) by_order = tasks_by_order(first);
  std::vector<const PlacementTask*> tasks;
  for (const PlacementTask& task : by_order) tasks.push_back(&task);
  if (tasks.empty()) tasks.push_back(&first);
  GdpRun run(input, options, options.updates, context);
  run.ask_policy(*options.policy, tasks, 6);
  if (options.updates > 0) run.tune(*options.policy, tasks);
  return run.result();
}

}  // namespace

PolicyShape shape_for_one_graph() {
  return {.priorities = 8, .coarsening = Coarsening::kLearned};
}

Placed gdp(const PlacerInput& input, const GdpOptions& options, Context& context) {
  const std::uint64_t states = context.states;
  Placed placed =
      options.policy ? of_trained_policy(input, options, context) : of_fresh_policy(input, options, context);
  placed.stats = {context.states - states, context.states - states};
  return placed;
}

std::optional<Duration> best_step(const Instance& instance, const Rules& rules,
                                  std::span<const DeviceOrders> orders,
                                  std::span<const Assignment> assignments, ThreadPool* pool) {
  std::optional<Duration> best;
  for (const Engine& engine : engines_by(instance, rules, orders)) {
    for (const Evaluated& seen : engine.evaluate_all(assignments, pool)) {
      if (seen.fits && !seen.deadlock && (!best || seen.time < *best)) best = seen.time;
    }
  }
  return best;
}

Placed gdp_search(const PlacerInput& input, const GdpOptions& options, Context& context) {
  const std::uint64_t states = context.states;
  GdpOptions how = options;
  if (how.updates > 0) {
    how.to_beat = best_step(input.instance, how.task.rules, usual_orders(input.instance),
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
