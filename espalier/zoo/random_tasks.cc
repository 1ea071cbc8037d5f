#include "espalier/zoo/random_tasks.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "espalier/base/shuffle.h"

namespace espalier {
namespace {

// Uniform in 1 ± percent, never below 0.01.
double around_one(Rng& rng, std::int64_t percent) {
  const double part = static_cast<double>(percent) / 100;
  return std::max(0.01, 1 + part * (2 * rng.unit() - 1));
}

TaskDag::Task random_task(std::string name, Rng& rng, std::int64_t spread) {
  TaskDag::Task task{std::move(name), "task"};
  task.time = around_one(rng, spread);
  task.bytes = around_one(rng, spread);
  return task;
}

// How many tasks each level has: the first and the last one.
std::vector<std::int64_t> level_sizes(const RandomApplication& application, Rng& rng) {
  const double root = std::sqrt(static_cast<double>(application.tasks));
  const double shape = static_cast<double>(application.shape) / 100;
  const auto mean_depth = std::max<std::int64_t>(1, static_cast<std::int64_t>(root / shape));
  const auto mean_width = std::max<std::int64_t>(1, static_cast<std::int64_t>(root * shape));
  std::vector<std::int64_t> sizes{1};
  std::int64_t left = application.tasks - 2;
  const std::int64_t depth =
      drawn(rng, std::max<std::int64_t>(1, mean_depth / 2), mean_depth + mean_depth / 2);
  for (std::int64_t level = 0; level < depth && left > 0; ++level) {
    const std::int64_t width = drawn(rng, 1, 2 * mean_width - 1);
    sizes.push_back(std::min(left, width));
    left -= sizes.back();
  }
  // What is left over goes to the levels in turn.
  for (std::size_t i = 0; left > 0; ++i, --left) ++sizes[1 + i % (sizes.size() - 1)];
  sizes.push_back(1);
  return sizes;
}

}  // namespace

TaskDag random_application(const RandomApplication& application) {
  TaskDag graph("giph-" + std::to_string(application.seed));
  Rng rng(stream_key(static_cast<std::uint64_t>(application.seed), {4}));
  std::size_t level_begin = 0, level_end = 0;  // of the level before
  const std::vector<std::int64_t> sizes = level_sizes(application, rng);
  for (std::size_t level = 0; level + 1 < sizes.size(); ++level) {
    const std::size_t begin = graph.tasks();
    for (std::int64_t i = 0; i < sizes[level]; ++i) {
      std::vector<std::size_t> reads;
      if (level > 0) {
        reads.push_back(level_begin + rng.below(level_end - level_begin));
        const double chance = static_cast<double>(application.degree - 1) / static_cast<double>(begin);
        for (std::size_t from = 0; from < begin; ++from) {
          if (rng.unit() < chance) reads.push_back(from);
        }
      }
      graph.add(random_task("task" + std::to_string(graph.tasks()), rng, application.spread),
                std::move(reads));
    }
    level_begin = begin;
    level_end = graph.tasks();
  }
  graph.add(random_task("task" + std::to_string(graph.tasks()), rng, application.spread), graph.loose());
  return graph;
}

Cluster device_network(const DeviceNetwork& network) {
  Rng rng(stream_key(static_cast<std::uint64_t>(network.seed), {5}));
  ClusterParts parts;
  Group all;
  all.name = "network";
  all.bandwidth = kTaskLinkBytesPerSecond;
  parts.groups.push_back(all);
  for (std::int64_t d = 0; d < network.devices; ++d) {
    DeviceKind kind;
    kind.name = "kind" + std::to_string(d);
    kind.memory = gibibytes(1024);
    kind.flops_f32 = kind.flops_f16 = 1e12;
    kind.memory_bandwidth = 1'000'000'000'000;
    kind.speed = around_one(rng, network.spread);
    Device device;
    device.name = "dev" + std::to_string(d);
    device.kind = KindId(static_cast<std::size_t>(d));
    device.memory = kind.memory;
    parts.kinds.push_back(std::move(kind));
    parts.devices.push_back(std::move(device));
  }
  const auto devices = static_cast<std::size_t>(network.devices);
  for (std::size_t a = 0; a < devices; ++a) {
    for (std::size_t b = a + 1; b < devices; ++b) {
      NamedLink link;
      link.from = DeviceId(a);
      link.to = DeviceId(b);
      const double bandwidth = static_cast<double>(kTaskLinkBytesPerSecond) * around_one(rng, network.spread);
      link.bandwidth = static_cast<std::int64_t>(bandwidth);
      link.latency = microseconds(drawn(rng, 0, network.latency));
      parts.links.push_back(link);
    }
  }
  return Cluster(std::move(parts));
}

namespace {

// So many percent of 0 … count - 1, at least `least`, ascending.
std::vector<std::size_t> drawn_of(Rng& rng, std::size_t count, std::int64_t percent, std::size_t least) {
  std::vector<std::size_t> all(count);
  std::iota(all.begin(), all.end(), std::size_t{0});
  shuffle(std::span(all), rng);
  all.resize(std::max(least, (count * static_cast<std::size_t>(percent) + 50) / 100));
  std::ranges::sort(all);
  return all;
}

}  // namespace

void need_hardware(TaskDag& graph, const Cluster& cluster, const SpecialHardware& hardware) {
  if (hardware.restricted == 0) return;
  Rng rng(stream_key(static_cast<std::uint64_t>(hardware.seed), {10}));
  std::vector<std::vector<std::string>> kinds_with(static_cast<std::size_t>(hardware.sorts));
  for (std::vector<std::string>& kinds : kinds_with) {
    for (const std::size_t d : drawn_of(rng, cluster.devices().size(), hardware.support, 1)) {
      kinds.push_back(cluster.kind(cluster.device(DeviceId(d)).kind).name);
    }
  }
  for (const std::size_t task : drawn_of(rng, graph.tasks(), hardware.restricted, 0)) {
    graph.restrict_to(task, kinds_with[rng.below(kinds_with.size())]);
  }
}

TaskDag layered_tasks(const LayeredTasks& tasks) {
  TaskDag graph("layered-" + std::to_string(tasks.seed));
  Rng rng(stream_key(static_cast<std::uint64_t>(tasks.seed), {6}));
  const auto width = static_cast<std::uint64_t>(tasks.width);
  for (std::int64_t layer = 0; layer < tasks.layers; ++layer) {
    const std::size_t before = graph.tasks() - (layer == 0 ? 0 : width);
    for (std::int64_t i = 0; i < tasks.width; ++i) {
      std::vector<std::size_t> reads;
      const std::int64_t count = layer == 0 ? 0 : drawn(rng, 1, 3);
      for (std::int64_t r = 0; r < count; ++r) reads.push_back(before + rng.below(width));
      graph.add(random_task("layer" + std::to_string(layer) + "." + std::to_string(i), rng, tasks.spread),
                std::move(reads));
    }
  }
  return graph;
}

TaskDag fork_join(const ForkJoin& tasks) {
  TaskDag graph("fork-join-" + std::to_string(tasks.seed));
  Rng rng(stream_key(static_cast<std::uint64_t>(tasks.seed), {7}));
  std::size_t fork = graph.add(random_task("fork0", rng, tasks.spread));
  for (std::int64_t s = 0; s < tasks.sections; ++s) {
    std::vector<std::size_t> ends;
    for (std::int64_t b = 0; b < tasks.branches; ++b) {
      std::size_t last = fork;
      for (std::int64_t i = 0; i < tasks.length; ++i) {
        const std::string name =
            "section" + std::to_string(s) + ".branch" + std::to_string(b) + "." + std::to_string(i);
        last = graph.add(random_task(name, rng, tasks.spread), {last});
      }
      ends.push_back(last);
    }
    fork = graph.add(random_task("fork" + std::to_string(s + 1), rng, tasks.spread), ends);
  }
  return graph;
}

TaskDag embedding_tables(const EmbeddingTables& tables) {
  TaskDag graph("embedding-tables-" + std::to_string(tables.seed));
  Rng rng(stream_key(static_cast<std::uint64_t>(tables.seed), {8}));
  std::vector<std::size_t> given;
  for (std::int64_t t = 0; t < tables.tables; ++t) {
    const std::int64_t rows = std::int64_t{1} << drawn(rng, 12, 22);
    const std::int64_t width = std::int64_t{1} << drawn(rng, 4, 7);
    const std::int64_t bag = std::int64_t{1} << drawn(rng, 0, 5);
    const auto time = static_cast<double>(bag * width + 64);  // 64: what a look-up takes at least
    given.push_back(graph.add(
        {"table" + std::to_string(t), "look_up", time, static_cast<double>(width), Bytes(4 * rows * width)}));
  }
  constexpr double kDense = 512;  // a layer beside an average look-up
  std::vector<std::size_t> reads;
  for (std::int64_t l = 0; l < tables.bottom; ++l)
    reads = {graph.add({"bottom" + std::to_string(l), "linear", kDense, 64, mebibytes(1)}, reads)};
  reads.insert(reads.end(), given.begin(), given.end());
  reads = {graph.add({"interaction", "interaction", kDense, 64}, reads)};
  for (std::int64_t l = 0; l < tables.top; ++l)
    reads = {graph.add({"top" + std::to_string(l), "linear", kDense, 64, mebibytes(1)}, reads)};
  return graph;
}

}  // namespace espalier
