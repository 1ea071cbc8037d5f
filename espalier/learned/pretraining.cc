#include "espalier/learned/pretraining.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>

#include "espalier/base/check.h"
#include "espalier/learned/contrastive.h"
#include "espalier/learned/gdp.h"
#include "espalier/planners/placement/default_search.h"
#include "espalier/planners/placement/layer_split.h"
#include "espalier/planners/placement/ranks.h"
#include "espalier/planners/placement/simple.h"

namespace espalier::placement {
std::optional<Sample> searched_placement(const PlacementTask& task, std::uint64_t looks, std::uint64_t seed) {
  const Instance& instance = task.instance();
  Context context;
  context.budget.max_states = looks;
  const Instance joined = joined_units(instance, task.clusters());
  PlacementSearchOptions options;
  options.seed = seed;
  options.chains = 1;
  options.orders = {orders_of(task, {})};
  if (auto split = best_layer_split(task.engine(), task.layer_of_unit(), context))
    options.starts.push_back(split->assignment);
  for (Assignment& start : simple_starts(instance)) options.starts.push_back(std::move(start));
  for (Assignment& start : options.starts) start = devices_of_clusters(instance, task.clusters(), start);
  const Placed placed = placement_search(joined, task.engine().rules(), options, context);
  if (!placed.assignment) return std::nullopt;
  return judge(task, {*placed.assignment}, Repairs::kNone, nullptr).front();
}

TrainingSet make_training_set(const TrainingSetOptions& options, ThreadPool* pool,
                              const std::function<void(std::size_t)>& told) {
  TrainingSet set(options.graphs);
  std::atomic<std::size_t> done = 0;
  const auto make = [&](std::size_t i) {
    WorkloadRecipe recipe = draw_workload(options.seed + i, options.without);
    const std::size_t devices = parse_cluster(recipe.cluster).devices().size();
    auto graph = std::make_unique<TrainingGraph>(std::move(recipe));
    const Instance& instance = graph->workload.instance;
    const PlacementTask first(graph->workload.graph, instance,
                              {.clusters = {.clusters = usual_clusters(devices)}});
    std::vector<DeviceOrders> by(1);
    if (options.by_each_order) by = usual_orders(instance);
    for (DeviceOrders& orders : by) {
      PlacementTask task(first, std::move(orders.priority));
      const std::optional<Sample> best = searched_placement(task, options.looks, options.seed + i);
      if (!best) continue;
      NodeDevices target = canonical(task.input(), best->devices);
      const double target_score = score(task, best->evaluated);
      graph->lessons.push_back({std::move(task), std::move(target), target_score});
    }
    if (!graph->lessons.empty()) set[i] = std::move(graph);
    if (told) told(++done);
  };
  on_threads(pool, options.graphs, make);
  std::erase_if(set, [](const std::unique_ptr<TrainingGraph>& graph) { return !graph; });
  return set;
}

void pretrain(Policy& policy, const TrainingSet& set, const PretrainingOptions& options, Context& context,
              const std::function<void(const PretrainingStep&)>& told) {
  ESP_CHECK(!set.empty());
  std::vector<const PlacementTask*> tasks;
  std::vector<NodeDevices> targets;
  std::vector<double> target_scores;
  for (const std::unique_ptr<TrainingGraph>& graph : set) {
    for (const Lesson& lesson : graph->lessons) {
      tasks.push_back(&lesson.task);
      targets.push_back(lesson.target);
      target_scores.push_back(lesson.target_score);
    }
  }
  LearningOptions learning = options.learning;
  learning.seed = options.seed;
  learning.updates = options.updates;
  const bool goes_on = !options.checkpoint.empty() && std::filesystem::exists(options.checkpoint);
  if (!goes_on) {
    std::vector<const PolicyInput*> inputs;
    for (const PlacementTask* task : tasks) inputs.push_back(&task->input());
    contrast(policy, inputs, {.epochs = options.contrast, .seed = options.seed}, context);
    if (context.stop()) return;
  }
  Learner learner(policy, tasks, learning);
  if (goes_on) learner.restore(options.checkpoint);
  const std::uint64_t imitations = options.rounds * tasks.size(), steps = imitations + options.updates;
  while (!context.stop()) {
    const std::uint64_t step = learner.imitated() + learner.updates();
    if (step >= steps) break;
    PretrainingStep now{step + 1, steps, step < imitations};
    if (now.imitates) {
      const double part = static_cast<double>(step) / static_cast<double>(imitations);
      const double rate =
          options.imitation_rate * std::pow(options.last_imitation_rate / options.imitation_rate, part);
      learner.imitate(targets, 1, options.confidence, rate);
    } else {
      const std::size_t turn = learner.next_task();
      if (!learner.update(context)) break;
      const LearningPoint& point = learner.progress(turn).curve.back();
      now.valid = point.valid;
      now.mean_over_target = point.mean / target_scores[turn];
    }
    if (!options.checkpoint.empty() && (step + 1) % options.save_every == 0) learner.save(options.checkpoint);
    if (told) told(now);
  }
  if (!options.checkpoint.empty()) learner.save(options.checkpoint);
}

}  // namespace espalier::placement
