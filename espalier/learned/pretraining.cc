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

TrainingGraph::TrainingGraph(WorkloadRecipe of, const TaskOptions& options)
    : recipe(std::move(of)),
      workload(make_workload(recipe)),
      task(workload.graph, workload.instance, options) {}

TrainingSet make_training_set(const TrainingSetOptions& options, ThreadPool* pool,
                              const std::function<void(std::size_t)>& told) {
  TrainingSet set(options.graphs);
  std::atomic<std::size_t> done = 0;
  const auto make = [&](std::size_t i) {
    WorkloadRecipe recipe = draw_workload(options.seed + i, options.without);
    const std::size_t devices = parse_cluster(recipe.cluster).devices().size();
    auto graph = std::make_unique<TrainingGraph>(
        std::move(recipe), TaskOptions{.clusters = {.clusters = usual_clusters(devices)}});
    const PlacementTask& task = graph->task;
    const std::optional<Sample> best = searched_placement(task, options.looks, options.seed + i);
    if (best) {
      graph->target_score = score(task, best->evaluated);
      graph->target = canonical(task.input(), best->devices);
      set[i] = std::move(graph);
    }
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
  for (const std::unique_ptr<TrainingGraph>& graph : set) {
    tasks.push_back(&graph->task);
    targets.push_back(graph->target);
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
  const std::uint64_t imitations = options.rounds * set.size(), steps = imitations + options.updates;
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
      now.mean_over_target = point.mean / set[turn]->target_score;
    }
    if (!options.checkpoint.empty() && (step + 1) % options.save_every == 0) learner.save(options.checkpoint);
    if (told) told(now);
  }
  if (!options.checkpoint.empty()) learner.save(options.checkpoint);
}

}  // namespace espalier::placement
