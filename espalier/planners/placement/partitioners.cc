#include "espalier/planners/placement/partitioners.h"

#include <cstdio>  // scotch.h takes FILE as given

#include <metis.h>
#include <scotch/scotch.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <tuple>

#include "espalier/base/check.h"
#include "espalier/planners/placement/list_clock.h"
#include "espalier/planners/placement/list_state.h"
#include "espalier/planners/placement/memory_ledger.h"

// How we deviate from how the placement literature uses them: weights are times, not counts of operators, and
// METIS balances memory too (as a second constraint, with 10 % and 30 % of slack). Weights are scaled to 32
// bits: a sum below 2^29, no edge below 1.
//
// Bad cases: a chain is cut into even parts, so no two devices ever work at once; a wide graph whose branches
// join often is cut along time as readily as across it.

namespace espalier::placement {
namespace {

// Random numbers of METIS are the process's.
std::mutex& metis_mutex() {
  static std::mutex mutex;
  return mutex;
}

// Weights of any size as 32-bit ones, in proportion; what is not zero stays at least 1.
std::vector<std::int32_t> scaled_weights(const std::vector<std::int64_t>& weights, std::int32_t least) {
  std::int64_t sum = 0;
  for (const std::int64_t weight : weights) sum += weight;
  const std::int64_t divisor = sum / (std::int64_t{1} << 29) + 1;
  std::vector<std::int32_t> result;
  result.reserve(weights.size());
  for (const std::int64_t weight : weights) {
    const auto part = static_cast<std::int32_t>(weight / divisor);
    result.push_back(std::max(part, weight > 0 ? std::max(least, 1) : least));
  }
  return result;
}

// Units and what passes between them, both directions of an edge, in rows of neighbours.
struct UnitGraph {
  std::vector<std::int32_t> begin, neighbour, edge_weight;
  std::vector<std::int64_t> time, bytes;  // by unit
};

UnitGraph unit_graph(const Instance& instance) {
  const MeanCosts mean(instance);
  struct Edge {
    UnitId from, to;
    std::int64_t weight;
  };
  std::vector<Edge> edges;
  for (std::size_t v = 0; v < instance.values(); ++v) {
    const UnitId from = instance.unit[instance.producer[v].index()];
    std::vector<UnitId> readers;
    for (const TaskId reader : instance.readers[v]) readers.push_back(instance.unit[reader.index()]);
    std::sort(readers.begin(), readers.end());
    readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
    for (const UnitId to : readers) {
      if (to == from) continue;
      edges.push_back({from, to, mean.message[v].count()});
      edges.push_back({to, from, mean.message[v].count()});
    }
  }
  std::sort(edges.begin(), edges.end(),
            [](const Edge& a, const Edge& b) { return std::tie(a.from, a.to) < std::tie(b.from, b.to); });
  UnitGraph graph;
  std::vector<std::int64_t> weights;
  std::size_t next = 0;
  for (std::size_t u = 0; u < instance.units(); ++u) {
    graph.begin.push_back(static_cast<std::int32_t>(weights.size()));
    while (next < edges.size() && edges[next].from == UnitId(u)) {
      const UnitId to = edges[next].to;
      std::int64_t sum = 0;
      for (; next < edges.size() && edges[next].from == UnitId(u) && edges[next].to == to; ++next) {
        sum += edges[next].weight;
      }
      graph.neighbour.push_back(static_cast<std::int32_t>(to.index()));
      weights.push_back(sum);
    }
  }
  graph.begin.push_back(static_cast<std::int32_t>(weights.size()));
  graph.edge_weight = scaled_weights(weights, 1);
  const MemoryLedger ledger(instance);
  for (std::size_t u = 0; u < instance.units(); ++u) {
    std::int64_t time = 0;
    for (const TaskId task : instance.tasks_of[u]) time += mean.time[task.index()].count();
    graph.time.push_back(time);
    graph.bytes.push_back(ledger.alone(UnitId(u)).count());
  }
  return graph;
}

// The share of the work that a device should have: by its speed, as all tasks together see it.
std::vector<double> speed_shares(const Instance& instance) {
  std::vector<double> shares;
  double sum = 0;
  for (std::size_t d = 0; d < instance.devices(); ++d) {
    Duration all;
    for (std::size_t t = 0; t < instance.tasks(); ++t) {
      const std::span<const DeviceId> allowed = instance.allowed[instance.unit[t].index()];
      const bool may = std::binary_search(allowed.begin(), allowed.end(), DeviceId(d));
      all += instance.time_on(TaskId(t), may ? DeviceId(d) : allowed.front());
    }
    shares.push_back(all.count() > 0 ? 1 / static_cast<double>(all.count()) : 1);
    sum += shares.back();
  }
  for (double& share : shares) share /= sum;
  return shares;
}

// METIS cannot do with a share of nothing.
std::vector<double> memory_shares(const Instance& instance) {
  double all = 0;
  for (const Bytes memory : instance.memory) all += static_cast<double>(memory.count());
  std::vector<double> shares;
  double sum = 0;
  for (const Bytes memory : instance.memory) {
    const double share = all > 0 ? static_cast<double>(memory.count()) / all : 1;
    shares.push_back(std::max(share, 1e-3));
    sum += shares.back();
  }
  for (double& share : shares) share /= sum;
  return shares;
}

Placed placed_parts(const Instance& instance, std::span<const std::int32_t> part) {
  Assignment assignment;
  for (std::size_t u = 0; u < instance.units(); ++u) {
    const DeviceId device(static_cast<std::size_t>(part[u]));
    const std::span<const DeviceId> allowed = instance.allowed[u];
    const bool may = std::binary_search(allowed.begin(), allowed.end(), device);
    assignment.push_back(may ? device : allowed.front());
  }
  return placed_by(instance, std::move(assignment));
}

Placed all_on_one(const Instance& instance) {
  return placed_parts(instance, std::vector<std::int32_t>(instance.units()));
}

// The libraries are made for graphs with many more vertices than parts, and METIS says so aloud.
bool too_small_to_cut(const Instance& instance) {
  return instance.devices() == 1 || instance.units() < 4 * instance.devices();
}

Placed failed(const char* library) {
  Placed placed;
  placed.why = std::string(library) + " gave no partition";
  return placed;
}

}  // namespace

Placed metis(const Instance& instance, const PartitionOptions& options) {
  static_assert(sizeof(idx_t) == sizeof(std::int32_t));
  if (too_small_to_cut(instance)) return all_on_one(instance);
  UnitGraph graph = unit_graph(instance);
  idx_t vertices = static_cast<idx_t>(instance.units()), constraints = 2;
  idx_t parts = static_cast<idx_t>(instance.devices()), cut = 0;
  const std::vector<std::int32_t> time = scaled_weights(graph.time, 0),
                                  bytes = scaled_weights(graph.bytes, 0);
  std::vector<idx_t> weights;
  for (std::size_t u = 0; u < instance.units(); ++u) weights.insert(weights.end(), {time[u], bytes[u]});
  const std::vector<double> speed = speed_shares(instance), memory = memory_shares(instance);
  std::vector<real_t> shares;
  for (std::size_t d = 0; d < instance.devices(); ++d) {
    shares.push_back(static_cast<real_t>(speed[d]));
    shares.push_back(static_cast<real_t>(memory[d]));
  }
  std::vector<real_t> slack{1.1F, 1.3F};
  std::vector<idx_t> setting(METIS_NOPTIONS), part(instance.units());
  METIS_SetDefaultOptions(setting.data());
  setting[METIS_OPTION_SEED] = options.seed;
  setting[METIS_OPTION_NUMBERING] = 0;
  const std::lock_guard lock(metis_mutex());
  const int status = METIS_PartGraphKway(&vertices, &constraints, graph.begin.data(), graph.neighbour.data(),
                                         weights.data(), nullptr, graph.edge_weight.data(), &parts,
                                         shares.data(), slack.data(), setting.data(), &cut, part.data());
  return status == METIS_OK ? placed_parts(instance, part) : failed("METIS");
}

Placed scotch(const Instance& instance, const PartitionOptions& options) {
  static_assert(sizeof(SCOTCH_Num) == sizeof(std::int32_t));
  if (too_small_to_cut(instance)) return all_on_one(instance);
  const UnitGraph graph = unit_graph(instance);
  const std::vector<std::int32_t> time = scaled_weights(graph.time, 1);
  std::vector<SCOTCH_Num> speed;
  for (const double share : speed_shares(instance)) {
    speed.push_back(std::max<SCOTCH_Num>(1, static_cast<SCOTCH_Num>(share * 10'000)));
  }
  // On its own Scotch takes all cores, and what it answers depends on how many there are.
  SCOTCH_Context alone;
  SCOTCH_Graph graph_here, mapped;
  SCOTCH_Arch target;
  SCOTCH_Strat strategy;
  ESP_CHECK(SCOTCH_contextInit(&alone) == 0 && SCOTCH_graphInit(&graph_here) == 0 &&
            SCOTCH_graphInit(&mapped) == 0 && SCOTCH_archInit(&target) == 0 &&
            SCOTCH_stratInit(&strategy) == 0);
  ESP_CHECK(SCOTCH_contextOptionSetNum(&alone, SCOTCH_OPTIONNUMDETERMINISTIC, 1) == 0 &&
            SCOTCH_contextRandomClone(&alone) == 0 && SCOTCH_contextThreadSpawn(&alone, 1, nullptr) == 0);
  SCOTCH_contextRandomSeed(&alone, options.seed);
  SCOTCH_contextRandomReset(&alone);
  std::vector<SCOTCH_Num> part(instance.units());
  const bool built = SCOTCH_graphBuild(&graph_here, 0, static_cast<SCOTCH_Num>(instance.units()),
                                       graph.begin.data(), graph.begin.data() + 1, time.data(), nullptr,
                                       static_cast<SCOTCH_Num>(graph.neighbour.size()),
                                       graph.neighbour.data(), graph.edge_weight.data()) == 0 &&
                     SCOTCH_contextBindGraph(&alone, &graph_here, &mapped) == 0 &&
                     SCOTCH_archCmpltw(&target, static_cast<SCOTCH_Num>(speed.size()), speed.data()) == 0;
  const bool done = built && SCOTCH_graphMap(&mapped, &target, &strategy, part.data()) == 0;
  SCOTCH_stratExit(&strategy);
  SCOTCH_archExit(&target);
  SCOTCH_graphExit(&mapped);
  SCOTCH_graphExit(&graph_here);
  SCOTCH_contextExit(&alone);
  return done ? placed_parts(instance, part) : failed("Scotch");
}

}  // namespace espalier::placement
