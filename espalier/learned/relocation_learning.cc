#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/learned/relocation_parts.h"
#include "espalier/learned/torch_threads.h"
#include "espalier/learned/workload.h"
#include "espalier/planners/placement/layer_split.h"
#include "espalier/planners/placement/simple.h"

namespace espalier::placement {
namespace {

// The best of a graph: by score where walks begin, and of those that fit.
struct Found {
  std::optional<Assignment> nearest, fitting;
  double score = 0;
  Duration step = {};

  void see(const PlacementTask& task, const Assignment& assignment, const Evaluated& evaluated) {
    const double own = placement::score(task, evaluated);
    if (!nearest || own < score) {
      nearest = assignment;
      score = own;
    }
    if (evaluated.fits && (!fitting || evaluated.time < step)) {
      fitting = assignment;
      step = evaluated.time;
    }
  }
};

// A start of the task or, every other time, the best that was found, with a share of its nodes on devices
// that are drawn.
Assignment varied_start(const RelocationTask& of, const Found& found, Rng& rng) {
  constexpr std::array<double, 4> kShares{0, 0.03, 0.15, 0.5};
  const bool from_found = found.nearest && rng.below(2) == 0;
  Assignment assignment = from_found ? *found.nearest : of.starts[rng.below(of.starts.size())];
  const double share = kShares[rng.below(kShares.size())];
  return shaken(*of.task, of.graph, std::move(assignment), share, rng);
}

using WalkedSteps = std::vector<RelocationStep>;

// PPO's loss of one walk's steps. A proposal's moves share its advantage evenly.
at::Tensor loss_of(const RelocationNet& net, const RelocationGraph& graph, const RelocationEdges& edges,
                   const WalkedSteps& steps, double clip) {
  std::vector<const RelocationView*> views;
  std::vector<std::int64_t> where;  // of each move in the rows of all views
  std::vector<float> old, worth;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const RelocationStep& step = steps[i];
    views.push_back(&step.view);
    std::vector<double> taken = step.scores;  // what is worse is not taken
    for (double& score : taken) score = std::min(score, step.before);
    const std::vector<double> advantage = rank_advantages(taken);
    for (std::size_t p = 0; p < step.proposals.size(); ++p) {
      const MoveSet& moves = step.proposals[p];
      for (std::size_t m = 0; m < moves.size(); ++m) {
        where.push_back(static_cast<std::int64_t>(i * graph.nodes * graph.devices + moves[m]));
        old.push_back(static_cast<float>(step.log_probability[p][m]));
        worth.push_back(static_cast<float>(advantage[p] / static_cast<double>(moves.size())));
      }
    }
  }
  const auto count = static_cast<std::int64_t>(where.size());
  const auto floats_of = [&](std::vector<float>& values) {
    return at::from_blob(values.data(), {count}, at::kFloat).clone();
  };
  const at::Tensor now = net.log_probabilities(edges, RelocationBatch(graph, views))
                             .flatten()
                             .index_select(0, at::from_blob(where.data(), {count}, at::kLong).clone());
  const at::Tensor chance = at::exp(now - floats_of(old)), gain = floats_of(worth);
  return -at::minimum(chance * gain, at::clamp(chance, 1 - clip, 1 + clip) * gain).mean();
}

RelocationPoint point_of(std::span<const WalkedSteps> walks) {
  RelocationPoint point;
  double better = 0, proposals = 0;
  for (const WalkedSteps& steps : walks) {
    if (steps.empty()) continue;
    const RelocationStep& last = steps.back();
    const double end = std::min(last.before, *std::min_element(last.scores.begin(), last.scores.end()));
    point.gain += std::log(steps.front().before / end) / static_cast<double>(walks.size());
    for (const RelocationStep& step : steps) {
      for (const double score : step.scores) better += score < step.before ? 1 : 0;
      proposals += static_cast<double>(step.scores.size());
    }
  }
  point.better = better / std::max(1.0, proposals);
  return point;
}

void learn_from_walks(const RelocationNet& net, const RelocationGraph& graph, const RelocationEdges& edges,
                      std::span<const WalkedSteps> walks, const RelocationLearning& options, double rate,
                      Adam& adam) {
  const FewTorchThreads few(graph.nodes);
  for (std::size_t epoch = 0; epoch < options.epochs; ++epoch) {
    GradientSum gradients(net.weights());
    bool any = false;
    for (const WalkedSteps& steps : walks) {
      if (steps.empty()) continue;
      gradients.add(loss_of(net, graph, edges, steps, options.clip) / static_cast<double>(walks.size()));
      any = true;
    }
    if (any) adam.step(gradients, rate, options.most_norm);
  }
}

// One walk; none of its steps is empty.
WalkedSteps walk_from(const RelocationNet& net, const RelocationTask& of, const RelocationEdges& edges,
                      const RelocationLearning& options, Rng& rng, Context& context, Found& found) {
  WalkedSteps steps;
  RelocationWalk walk(*of.task, of.graph, varied_start(of, found, rng));
  const auto see = [&](const Assignment& assignment, const Evaluated& evaluated) {
    found.see(*of.task, assignment, evaluated);
  };
  see(walk.assignment(), walk.view().evaluated);
  while (steps.size() < options.steps && walk.can_move())
    steps.push_back(walk.step(net, edges, options.proposals, rng, context.pool, see));
  return steps;
}

}  // namespace

std::vector<std::optional<Assignment>> learn_relocation(
    RelocationPolicy& policy, std::span<const RelocationTask> tasks, const RelocationLearning& options,
    Context& context, const std::function<void(const RelocationPoint&)>& told) {
  ESP_CHECK(!tasks.empty() && options.walks > 0, tasks.size(), options.walks);
  const RelocationNet& net = policy.parts().net;
  Adam adam(net.weights());
  std::vector<Found> found(tasks.size());
  for (std::uint64_t update = 0; update < options.updates; ++update) {
    const std::uint64_t calls = options.walks * (options.steps * options.proposals + 1);
    if (context.stop() || !context.take_states(calls)) break;
    const std::size_t turn = update % tasks.size();
    const RelocationTask& own = tasks[turn];
    const RelocationEdges edges(own.graph);
    Rng rng(stream_key(options.seed, {10, update}));
    std::vector<WalkedSteps> walks;
    for (std::size_t i = 0; i < options.walks; ++i)
      walks.push_back(walk_from(net, own, edges, options, rng, context, found[turn]));
    const double part = static_cast<double>(update) / static_cast<double>(options.updates);
    const double rate =
        options.learning_rate * std::pow(options.last_learning_rate / options.learning_rate, part);
    learn_from_walks(net, own.graph, edges, walks, options, rate, adam);
    if (!told) continue;
    RelocationPoint point = point_of(walks);
    point.update = update + 1;
    told(point);
  }
  std::vector<std::optional<Assignment>> best;
  for (Found& each : found) best.push_back(std::move(each.fitting));
  return best;
}

RelocationPolicy pretrain_relocation(const RelocationPretraining& options, Context& context,
                                     const std::function<void(const RelocationPoint&)>& told) {
  struct Made {
    Made(const WorkloadRecipe& recipe, std::size_t clusters)
        : workload(make_workload(recipe)),
          task(workload.graph, workload.instance, {.clusters = {.clusters = clusters}}) {}
    Workload workload;
    PlacementTask task;
  };
  std::vector<std::unique_ptr<Made>> made;
  std::vector<RelocationTask> tasks;
  for (std::size_t i = 0; i < options.graphs; ++i) {
    made.push_back(
        std::make_unique<Made>(draw_workload(options.seed + i, options.without), options.clusters));
    const Made& last = *made.back();
    RelocationTask task(last.task);
    Context looks;
    const std::vector<std::uint32_t> layers = layers_of(last.workload.instance, last.workload.graph);
    if (std::optional<FittingAssignment> split = best_layer_split(last.task.engine(), layers, looks))
      task.starts.push_back(std::move(split->assignment));
    if (std::optional<Assignment> alone = one_device(last.workload.instance).assignment)
      task.starts.push_back(std::move(*alone));
    if (!task.starts.empty()) tasks.push_back(std::move(task));
  }
  RelocationPolicy policy(options.shape, options.seed);
  learn_relocation(policy, tasks, options.learning, context, told);
  return policy;
}

}  // namespace espalier::placement
