#include "espalier/learned/pretraining.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>

#include "espalier/base/check.h"
#include "espalier/learned/gdp.h"
#include "espalier/planners/placement/default_search.h"
#include "espalier/planners/placement/layer_split.h"
#include "espalier/planners/placement/simple.h"

namespace espalier::placement {
namespace {

// The instance in which each cluster is one unit: what a search of clusters moves.
class ClusterSearch {
 public:
  ClusterSearch(const Graph& graph, const PlacementTask& task) : graph_(graph), task_(task) {}

  std::optional<Sample> run(std::uint64_t looks, std::uint64_t seed) {
    const Instance& instance = task_.instance();
    Context context;
    context.budget.max_states = looks;
    PlacementSearchOptions options;
    options.seed = seed;
    options.chains = 1;
    const std::vector<std::uint32_t> layers = layers_of(instance, graph_);
    if (auto split = best_layer_split(task_.engine(), layers, context))
      options.starts.push_back(split->assignment);
    for (Assignment& start : simple_starts(instance)) options.starts.push_back(std::move(start));
    const Instance joined = joined_instance();
    for (Assignment& start : options.starts) start = devices_of_clusters(instance, task_.clusters(), start);
    const Placed placed = placement_search(joined, task_.engine().rules(), options, context);
    if (!placed.assignment) return std::nullopt;
    return judge(task_, {*placed.assignment}, Repairs::kNone, nullptr).front();
  }

 private:
  // Units become those of the clusters; all else stays.
  Instance joined_instance() const {
    const Clusters& clusters = task_.clusters();
    Instance joined = task_.instance();
    std::vector<std::vector<TaskId>> tasks(clusters.count);
    std::vector<std::vector<std::uint32_t>> resident(clusters.count);
    std::vector<std::vector<DeviceId>> allowed(clusters.count);
    for (std::size_t u = 0; u < clusters.of_unit.size(); ++u) {
      const std::uint32_t cluster = clusters.of_unit[u];
      const auto append = [&](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
      append(tasks[cluster], joined.tasks_of[u]);
      append(resident[cluster], joined.resident[u]);
      allowed[cluster].assign(joined.allowed[u].begin(), joined.allowed[u].end());
    }
    joined.tasks_of = {};
    joined.resident = {};
    joined.allowed = {};
    for (std::size_t c = 0; c < clusters.count; ++c) {
      std::sort(tasks[c].begin(), tasks[c].end());
      std::sort(resident[c].begin(), resident[c].end());
      resident[c].erase(std::unique(resident[c].begin(), resident[c].end()), resident[c].end());
      const auto add = [&](auto& lists, const auto& items) {
        lists.items.insert(lists.items.end(), items.begin(), items.end());
        lists.close();
      };
      add(joined.tasks_of, tasks[c]);
      add(joined.resident, resident[c]);
      add(joined.allowed, allowed[c]);
    }
    for (UnitId& unit : joined.unit) unit = UnitId(clusters.of_unit[unit.index()]);
    return joined;
  }

  const Graph& graph_;
  const PlacementTask& task_;
};

}  // namespace

std::optional<Sample> searched_placement(const Graph& graph, const PlacementTask& task, std::uint64_t looks,
                                         std::uint64_t seed) {
  return ClusterSearch(graph, task).run(looks, seed);
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
    const std::optional<Sample> best =
        searched_placement(graph->workload.graph, task, options.looks, options.seed + i);
    if (best) {
      graph->target_score = score(task, best->evaluated);
      graph->target = canonical(task.input(), best->devices);
      set[i] = std::move(graph);
    }
    if (told) told(++done);
  };
  if (pool) {
    pool->for_each(options.graphs, make);
  } else {
    for (std::size_t i = 0; i < options.graphs; ++i) make(i);
  }
  std::erase_if(set, [](const std::unique_ptr<TrainingGraph>& graph) { return !graph; });
  return set;
}

Policy pretrain(const TrainingSet& set, const PretrainingOptions& options, Context& context,
                const std::function<void(const PretrainingStep&)>& told) {
  ESP_CHECK(!set.empty());
  Policy policy(options.shape, options.seed);
  std::vector<const PlacementTask*> tasks;
  std::vector<NodeDevices> targets;
  for (const std::unique_ptr<TrainingGraph>& graph : set) {
    tasks.push_back(&graph->task);
    targets.push_back(graph->target);
  }
  LearningOptions learning = options.learning;
  learning.seed = options.seed;
  learning.updates = options.updates;
  {
    Learner learner(policy, tasks, learning);
    if (!options.checkpoint.empty() && std::filesystem::exists(options.checkpoint))
      learner.restore(options.checkpoint);
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
      if (!options.checkpoint.empty() && (step + 1) % options.save_every == 0)
        learner.save(options.checkpoint);
      if (told) told(now);
    }
    if (!options.checkpoint.empty()) learner.save(options.checkpoint);
  }
  return policy;
}

}  // namespace espalier::placement
