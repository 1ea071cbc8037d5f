#pragma once

// Small problems for tests of planners.

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "espalier/base/rng.h"
#include "espalier/cluster/text.h"
#include "espalier/graph/text.h"
#include "espalier/planners/planner.h"
#include "espalier/sim/simulate.h"

namespace espalier {

// A problem whose operators of class "cN" take N ms forward and 2N ms backward per micro-batch of one sample.
struct Toy {
  Graph graph;
  Cluster cluster;
  CostTable costs;
  Training training;

  Toy(const std::string& graph_text, const std::string& cluster_text, std::int64_t batch,
      std::vector<BatchSize> sizes = {BatchSize(1)})
      : graph(parse_graph(graph_text)),
        cluster(parse_cluster_lines(cluster_text)),
        costs(table(graph, cluster)) {
    training.batch = BatchSize(batch);
    training.micro_batches = std::move(sizes);
    training.optimizer.kind = OptimizerKind::kSgd;
  }
  Problem problem(Pins pins = {}) const {
    return {
        .graph = graph, .cluster = cluster, .costs = costs, .training = training, .pins = std::move(pins)};
  }

  // The plan's time by the full simulation; plan, schedule and trace pass their checkers.
  Duration simulated(const Outcome& outcome) const {
    const auto& plan = std::get<PipelinePlan>(*outcome.plan);
    EXPECT_THAT(check_plan(graph, cluster, plan), ::testing::IsEmpty());
    const StagedModel model = stage_model(graph, cluster, costs, training, plan);
    const Schedule schedule = make_schedule(model, cluster.devices().size());
    EXPECT_THAT(check_schedule(model, schedule), ::testing::IsEmpty());
    const Trace trace = simulate(model, cluster, schedule);
    EXPECT_THAT(check_trace(model, cluster, schedule, trace), ::testing::IsEmpty());
    return trace.iteration;
  }

  static CostTable table(const Graph& graph, const Cluster& cluster) {
    CostTableParts parts;
    std::vector<std::string> classes;
    for (const Operator& op : graph.operators()) classes.push_back(op.op_class);
    std::sort(classes.begin(), classes.end());
    classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
    for (const std::string& name : classes) {
      const std::int64_t ms = name.size() > 1 && name[0] == 'c' ? std::stoll(name.substr(1)) : 0;
      for (const DeviceKind& kind : cluster.kinds()) {
        OperatorCost cost;
        cost.forward = milliseconds(ms);
        cost.input_gradient = milliseconds(ms);
        cost.weight_gradient = milliseconds(ms);
        cost.saved = {{SavedTensor::Side::kInput, 0}};
        parts.rows.push_back({name, kind.name, {}, {{BatchSize(1), cost}}});
      }
    }
    return CostTable(parts);
  }
};

// Operators of even classes take half of their time in groups of two, those of c1 all of it, and c3 cannot.
inline std::optional<int> ms_in_groups(int ms, std::uint32_t degree) {
  if (degree == 1 || ms == 1) return ms;
  return ms == 3 ? std::nullopt : std::optional(ms / 2);
}
inline CostTable with_groups(const CostTable& costs) {
  CostTableParts parts = costs.parts();
  const std::vector<CostRow> plain = parts.rows;
  for (const CostRow& row : plain) {
    const int ms = row.op_class.size() > 1 && row.op_class[0] == 'c' ? std::stoi(row.op_class.substr(1)) : 0;
    const auto half = ms_in_groups(ms, 2);
    if (!half) continue;
    CostRow fresh = row;
    fresh.variant.tensor_parallel = 2;
    for (auto& point : fresh.points) {
      point.cost.forward = point.cost.input_gradient = point.cost.weight_gradient = milliseconds(*half);
    }
    parts.rows.push_back(std::move(fresh));
  }
  return CostTable(std::move(parts));
}

inline constexpr const char* kThreeDevices =
    "kind gpu 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
    "group network latency=500us lanes=unlimited\n"
    "device dev0 gpu in network\ndevice dev1 gpu in network\ndevice dev2 gpu in network\n";

// design: two towers and a head, towers 2 ms forward and 4 ms backward, the head 1 and 2.
inline constexpr const char* kTowers =
    "x = input() : f32[b]\ny = input() : f32[b]\nw = parameter(w) : f32[1]\nv = parameter(v) : f32[1]\n"
    "img = tower(x, w) : f32[b] @class=c2\ntxt = tower(y, v) : f32[b] @class=c2\n"
    "loss = head(img, txt) : f32[] @class=c1\nreturn loss\n";

// Two to four operators, trees and joins, with a loss that reads what nobody else does.
inline std::string random_graph_text(Rng& rng) {
  const std::size_t n = 2 + rng.below(3);
  std::string text = "x = input() : f32[b]\nw = parameter(w) : f32[1]\n";
  std::vector<std::string> names{"x"}, unread;
  for (std::size_t i = 0; i < n; ++i) {
    const bool last = i + 1 == n;
    std::string inputs;
    if (last) {
      for (const std::string& name : unread) inputs += name + ", ";
    } else {
      const std::string read = names[rng.below(names.size())];
      std::erase(unread, read);
      inputs = read + ", ";
    }
    const std::string name = last ? "loss" : "h" + std::to_string(i);
    text += name + " = f(" + inputs + "w) : f32[" + (last ? "" : "b") + "] @class=c" +
            std::to_string(1 + rng.below(6)) + "\n";
    names.push_back(name);
    if (!last) unread.push_back(name);
  }
  return text;
}

inline constexpr const char* kTwoEqualDevices =
    "kind gpu 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\ngroup network latency=500us "
    "lanes=unlimited\n"
    "device dev0 gpu in network\ndevice dev1 gpu in network\n";

// A chain of layers that take so many ms forward, and twice that backward; each keeps what it reads, 1 MiB a
// sample.
inline std::string wide_chain(const std::vector<std::int64_t>& times) {
  std::string text = "x = input() : f32[b,262144]\n", before = "x";
  for (std::size_t i = 0; i < times.size(); ++i) {
    const std::string n = std::to_string(i), end = i + 1 == times.size() ? "" : "b,262144";
    text += "w" + n + " = parameter(w" + n + ") : f32[1]\n";
    text += "y" + n + " = layer(" + before + ", w" + n + ") : f32[" + end + "] @class=c" +
            std::to_string(times[i]) + "\n";
    before = "y" + n;
  }
  return text + "return " + before + "\n";
}

// The same where devices have so much memory, in turn.
inline Toy with_memory(Toy toy, std::vector<Bytes> memory) {
  ClusterParts parts = toy.cluster.parts();
  for (std::size_t d = 0; d < parts.devices.size(); ++d) parts.devices[d].memory = memory[d % memory.size()];
  toy.cluster = Cluster(parts);
  return toy;
}

// The same with costs of a published profile, which tells one time for both halves of backward.
inline Toy with_guessed_halves(Toy toy) {
  CostTableParts parts = toy.costs.parts();
  for (CostRow& row : parts.rows) {
    for (CostRow::Point& point : row.points) point.cost.origin = Origin::kProfile;
  }
  toy.costs = CostTable(parts);
  return toy;
}

// How many operators the stages of a pipeline compute again.
inline std::size_t recomputed_operators(const Outcome& outcome) {
  std::size_t count = 0;
  for (const Stage& stage : std::get<PipelinePlan>(*outcome.plan).stages) count += stage.recompute.size();
  return count;
}

}  // namespace espalier
