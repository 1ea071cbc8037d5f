#include "espalier/learned/placement_task.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/planners/placement/ranks.h"
#include "espalier/planners/placement/repair.h"
#include "espalier/planners/placement/simple.h"

namespace espalier::placement {
namespace {

Duration best_alone(const Instance& instance) {
  Duration best = Duration::max();
  for (std::size_t d = 0; d < instance.devices(); ++d) {
    Duration time;
    for (std::size_t t = 0; t < instance.tasks(); ++t) time += instance.time_on(TaskId(t), DeviceId(d));
    best = std::min(best, time);
  }
  return std::max(best, nanoseconds(1));
}

Clusters cluster_layers(std::span<const std::uint32_t> layers, const Instance& instance,
                        ClusterOptions options) {
  if (options.parts.empty()) options.parts.assign(layers.begin(), layers.end());
  return cluster_units(instance, options);
}

void judge_all(const PlacementTask& task, std::vector<Sample>& samples, Repairs repairs, ThreadPool* pool) {
  const std::size_t shares = std::min<std::size_t>(pool ? 4 * pool->threads() : 1, samples.size());
  on_threads(pool, shares, [&](std::size_t share) {
    Scratch scratch;
    for (std::size_t i = share; i < samples.size(); i += shares) {
      Sample& sample = samples[i];
      std::optional<Engine> by_levels;
      if (!sample.levels.empty()) by_levels.emplace(task.engine(), orders_of(task, sample.levels));
      const Engine& engine = by_levels ? *by_levels : task.engine();
      sample.evaluated = engine.evaluate(sample.assignment, scratch);
      if (repairs == Repairs::kNone || sample.evaluated.fits) continue;
      Repaired repaired = repair(task.instance(), sample.assignment);
      if (!repaired.assignment) continue;
      sample.assignment = std::move(*repaired.assignment);
      sample.evaluated = engine.evaluate(sample.assignment, scratch);
    }
  });
}

// A row of probabilities for each node; an entry of each, `count` times.
template <class Entry>
std::vector<std::vector<Entry>> drawn(std::span<const float> probability, std::size_t columns,
                                      std::size_t count, std::uint64_t seed) {
  const std::size_t nodes = probability.size() / columns;
  std::vector<std::vector<Entry>> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    Rng rng(stream_key(seed, {i}));
    result[i].reserve(nodes);
    for (std::size_t n = 0; n < nodes; ++n) {
      const std::size_t entry = drawn_entry(probability.subspan(n * columns, columns), rng.unit());
      result[i].emplace_back(narrow(entry));
    }
  }
  return result;
}

}  // namespace

PlacementTask::PlacementTask(const Graph& graph, const Instance& instance, const TaskOptions& options)
    : layers_(layers_of(instance, graph)),
      clusters_(cluster_layers(layers_, instance, options.clusters)),
      input_(make_policy_input(instance, graph, clusters_, options.order)),
      priority_(options.priority),
      engine_(instance, options.rules, {priority_, {}}),
      memory_(all_memory(instance)),
      alone_(best_alone(instance)) {
  input_.by_priority = !priority_.empty();
}

PlacementTask::PlacementTask(const PlacementTask& other, std::vector<std::uint32_t> priority)
    : layers_(other.layers_),
      clusters_(other.clusters_),
      input_(other.input_),
      priority_(std::move(priority)),
      engine_(other.engine_, {priority_, {}}),
      memory_(other.memory_),
      alone_(other.alone_) {
  input_.by_priority = !priority_.empty();
}

std::deque<PlacementTask> tasks_by_order(const PlacementTask& task) {
  std::deque<PlacementTask> tasks;
  for (DeviceOrders& orders : usual_orders(task.instance()))
    tasks.emplace_back(task, std::move(orders.priority));
  return tasks;
}

Bytes all_memory(const Instance& instance) {
  return std::accumulate(instance.memory.begin(), instance.memory.end(), Bytes());
}

double graded_price(const Evaluated& evaluated, Bytes memory) {
  return 2 + 20 * static_cast<double>(evaluated.lack.count()) /
                 std::max(1.0, static_cast<double>(memory.count()));
}

double score(const PlacementTask& task, const Evaluated& evaluated, InvalidPrice price) {
  const double time = ratio(evaluated.time, task.alone());
  if (evaluated.fits) return time;
  if (price == InvalidPrice::kConstant) return ratio(milliseconds(100'000), task.alone());
  return time * graded_price(evaluated, task.memory());
}

std::vector<Sample> judge(const PlacementTask& task, std::vector<NodeDevices> placements, Repairs repairs,
                          ThreadPool* pool) {
  std::vector<NodeLevels> none(placements.size());
  return judge(task, std::move(placements), std::move(none), repairs, pool);
}

std::vector<Sample> judge(const PlacementTask& task, std::vector<NodeDevices> placements,
                          std::vector<NodeLevels> levels, Repairs repairs, ThreadPool* pool) {
  ESP_CHECK(placements.size() == levels.size(), placements.size(), levels.size());
  std::vector<Sample> samples(placements.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    samples[i].assignment = assignment_of_clusters(task.clusters(), placements[i]);
    samples[i].devices = std::move(placements[i]);
    samples[i].levels = std::move(levels[i]);
  }
  judge_all(task, samples, repairs, pool);
  return samples;
}

DeviceOrders orders_of(const PlacementTask& task, const NodeLevels& levels) {
  const std::span<const std::uint32_t> own = task.priority();
  if (levels.empty()) return {{own.begin(), own.end()}, {}};
  const Instance& instance = task.instance();
  std::vector<std::uint32_t> level;
  for (const UnitId unit : instance.unit) level.push_back(levels[task.clusters().of_unit[unit.index()]]);
  if (own.empty()) return {std::move(level), {}};
  std::vector<std::size_t> order(level.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return level[a] != level[b] ? level[a] < level[b] : own[a] < own[b];
  });
  DeviceOrders orders;
  orders.priority.resize(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) orders.priority[order[i]] = narrow(i);
  return orders;
}

std::vector<Sample> judge_units(const PlacementTask& task, std::vector<Assignment> assignments,
                                Repairs repairs, ThreadPool* pool) {
  std::vector<Sample> samples(assignments.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    samples[i].devices = devices_of_clusters(task.instance(), task.clusters(), assignments[i]);
    samples[i].assignment = std::move(assignments[i]);
  }
  judge_all(task, samples, repairs, pool);
  return samples;
}

std::size_t drawn_entry(std::span<const float> row, double uniform) {
  std::size_t chosen = row.size();
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (row[i] <= 0) continue;
    chosen = i;  // the last that is possible takes what rounding leaves
    uniform -= static_cast<double>(row[i]);
    if (uniform < 0) break;
  }
  return chosen;
}

std::vector<NodeDevices> draw(std::span<const float> probability, std::size_t devices, std::size_t count,
                              std::uint64_t seed) {
  return drawn<DeviceId>(probability, devices, count, seed);
}

std::vector<std::vector<std::uint32_t>> draw_entries(std::span<const float> probability, std::size_t columns,
                                                     std::size_t count, std::uint64_t seed) {
  return drawn<std::uint32_t>(probability, columns, count, seed);
}

NodeDevices most_probable(std::span<const float> probability, std::size_t devices) {
  NodeDevices placement;
  for (std::size_t begin = 0; begin < probability.size(); begin += devices) {
    const auto row = probability.subspan(begin, devices);
    placement.emplace_back(std::max_element(row.begin(), row.end()) - row.begin());
  }
  return placement;
}

std::vector<double> rank_advantages(const std::vector<double>& scores) {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] < scores[b]; });
  std::vector<double> advantage(scores.size());
  const double last = std::max<double>(1, static_cast<double>(scores.size()) - 1);
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin;
    while (end < order.size() && scores[order[end]] == scores[order[begin]]) ++end;
    const double rank = static_cast<double>(begin + end - 1) / 2;
    for (std::size_t i = begin; i < end; ++i) advantage[order[i]] = 1 - 2 * rank / last;
    begin = end;
  }
  return advantage;
}

}  // namespace espalier::placement
