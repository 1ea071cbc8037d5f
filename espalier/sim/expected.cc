#include "espalier/sim/expected.h"

#include <algorithm>
#include <cmath>

#include "espalier/base/rng.h"
#include "espalier/sim/simulate.h"

namespace espalier {
namespace {

constexpr std::size_t kMostPairs = 32;
constexpr std::size_t kMostTasks = 2'000'000;  // in all draws
constexpr double kLeast = 0.1;

// Mean 0, deviation 1: twelve uniform numbers, in arithmetic that is the same everywhere.
double normal(Rng& rng) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += rng.unit();
  return sum;
}

Duration scaled(Duration time, double factor) {
  return Duration(std::llround(static_cast<double>(time.count()) * std::max(kLeast, factor)));
}

// Tasks of actions, ascending.
std::vector<TaskIndex> actions_of(const CompiledSchedule& compiled) {
  std::vector<TaskIndex> actions;
  for (std::size_t t = 0; t < compiled.tasks.size(); ++t) {
    if (compiled.sources[t].kind == CompiledSchedule::Source::Kind::kAction) {
      actions.push_back(static_cast<TaskIndex>(t));
    }
  }
  return actions;
}

}  // namespace

Duration expected_iteration(const StagedModel& model, const Cluster& cluster, const Schedule& schedule,
                            const ActionScatter& scatter) {
  CompiledSchedule compiled = compile(model, cluster, schedule);
  TaskGraph& tasks = compiled.tasks;
  const std::vector<TaskIndex> actions = actions_of(compiled);
  for (const TaskIndex action : actions) {
    if (compiled.sources[action].index == 0) tasks.duration[action] += scatter.first;
  }
  if (scatter.spread_per_mille == 0 && scatter.device_per_mille == 0) return run_tasks(tasks).makespan;
  const std::vector<Duration> usual = tasks.duration;
  const std::size_t pairs =
      std::clamp(kMostTasks / std::max<std::size_t>(2 * tasks.size(), 1), std::size_t{1}, kMostPairs);
  const double spread = scatter.spread_per_mille / 1000.0, device_spread = scatter.device_per_mille / 1000.0;
  Rng rng(0);
  std::vector<double> away(actions.size()), device_away(cluster.devices().size());
  double sum = 0;
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    for (double& each : device_away) each = device_spread * normal(rng);
    for (std::size_t i = 0; i < actions.size(); ++i) {
      away[i] = device_away[compiled.sources[actions[i]].device.index()] + spread * normal(rng);
    }
    for (const double side : {1.0, -1.0}) {
      for (std::size_t i = 0; i < actions.size(); ++i) {
        tasks.duration[actions[i]] = scaled(usual[actions[i]], 1 + side * away[i]);
      }
      sum += static_cast<double>(run_tasks(tasks).makespan.count());
    }
  }
  return Duration(std::llround(sum / (2.0 * static_cast<double>(pairs))));
}

}  // namespace espalier
