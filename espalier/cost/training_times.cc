#include "espalier/cost/training_times.h"

namespace espalier {
namespace {

// `cost_of` gives an operator's cell, or null.
template <class CostOf>
std::vector<Duration> durations(const Graph& graph, const Cluster& cluster, const CostTable& table,
                                CostOf cost_of, KindId kind, OptimizerKind optimizer) {
  const DeviceKind& description = cluster.kind(kind);
  const KindOverhead overhead = table.overhead(description.name);
  const auto update_of = [&](Bytes parameters) {
    return at_speed(update_time(overhead, optimizer, parameters), description);
  };
  std::vector<Duration> times;
  times.reserve(graph.operators().size());
  Bytes updated;
  Duration taken;
  for (std::size_t i = 0; i < graph.operators().size(); ++i) {
    const Operator& op = graph.operators()[i];
    const OperatorCost* const cost = cost_of(OperatorId(i));
    Duration time = cost ? cost->forward + cost->backward() : Duration();
    if (op.role == OperatorRole::kUpdate) {
      for (const TensorId written : op.mutates) {
        if (const auto parameter = graph.tensor(written).parameter)
          updated += graph.parameter(*parameter).bytes();
      }
      const Duration all = update_of(updated);
      time = all - taken;
      taken = all;
    }
    times.push_back(time);
  }
  return times;
}

}  // namespace

std::vector<Duration> operator_durations(const Graph& graph, const Cluster& cluster, const CostTable& table,
                                         const OperatorCosts& costs, KindId kind, OptimizerKind optimizer) {
  const auto cost_of = [&](OperatorId op) { return &costs.of(op, kind); };
  return durations(graph, cluster, table, cost_of, kind, optimizer);
}

std::vector<Duration> operator_durations(const Graph& graph, const Cluster& cluster, const CostTable& table,
                                         const KindCosts& costs, KindId kind, OptimizerKind optimizer) {
  return durations(
      graph, cluster, table, [&](OperatorId op) { return costs.of(op); }, kind, optimizer);
}

Duration at_speed(Duration time, const DeviceKind& kind) {
  return kind.speed == 1 ? time : round_duration(static_cast<double>(time.count()) / kind.speed);
}

}  // namespace espalier
