#include "espalier/bound/bound.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "espalier/base/check.h"
#include "espalier/schedule/schedule.h"

// Both bounds say only what every order of actions must obey.
//
//   earliest(x)   no F of stage x starts before: the longest chain of one F per stage and the latencies to x
//   tail(x)       after the end of an I of x: its W and update, or the message back and the I's of a chain of
//   predecessors and their tails
//
// Device d, whose stages are X: T ≥ min earliest(x) + Σ (F + R + I) + min tail(x), because its first action
// is an F and the last I on it has a tail; and T ≥ min earliest(x) + Σ (F + R + B) + collectives + updates. A
// backward that is not split is an I followed by its W, so both hold for it too.
//
// Any plan, work: for weights y_d ≥ 0 of the devices with Σ y_d = 1, T ≥ Σ_op min_d y_d · w_d(op): a device's
// load is at most T, and each operator adds at least its least weighted cost somewhere (weak duality of the
// assignment problem on unrelated machines, Lenstra, Shmoys, Tardos, 1990). y_d is proportional to the speed
// at which d would do everything; with devices of one kind this is the total over their number.

namespace espalier {
namespace {

Duration least(const StagedStage& stage, Duration StageTimes::*part) {
  Duration best = Duration::max();
  for (const StagedReplica& replica : stage.replicas) best = std::min(best, replica.times.*part);
  return best;
}

// The fastest way a piece travels between the stages: over all pairs of replicas, nothing on one device.
Duration fastest_message(const StagedModel& model, const Cluster& cluster, const Crossing& crossing,
                         StageId from, StageId to, Bytes bytes) {
  if (crossing.token && model.tokens == TokenRule::kFree) return {};
  Duration best = Duration::max();
  for (const StagedReplica& a : model.stages[from.index()].replicas) {
    for (const StagedReplica& b : model.stages[to.index()].replicas) {
      for (const DeviceId x : a.devices) {
        for (const DeviceId y : b.devices) {
          if (x == y) return {};
          const Route route = cluster.route(x, y);
          best = std::min(best, route.hold(bytes) + route.latency);
        }
      }
    }
  }
  return best;
}

struct StageBounds {
  std::vector<Duration> earliest, tail;
};

StageBounds stage_bounds(const StagedModel& model, const Cluster& cluster) {
  const std::size_t n = model.stages.size();
  StageBounds bounds{std::vector<Duration>(n), std::vector<Duration>(n)};
  for (std::size_t s = 0; s < n; ++s) {  // producers come before readers
    bounds.tail[s] =
        least(model.stages[s], &StageTimes::weight_gradient) + least(model.stages[s], &StageTimes::update);
  }
  std::vector<const Crossing*> by_producer;
  for (const Crossing& crossing : model.crossings) by_producer.push_back(&crossing);
  std::stable_sort(by_producer.begin(), by_producer.end(),
                   [](const Crossing* a, const Crossing* b) { return a->from < b->from; });
  for (const Crossing* crossing : by_producer) {
    const std::size_t from = crossing->from.index();
    const Duration sent = bounds.earliest[from] + least(model.stages[from], &StageTimes::forward);
    for (const Crossing::Reader& reader : crossing->readers) {
      Duration& earliest = bounds.earliest[reader.stage.index()];
      earliest = std::max(earliest, sent + fastest_message(model, cluster, *crossing, crossing->from,
                                                           reader.stage, reader.bytes));
    }
    const Duration back = least(model.stages[from], &StageTimes::input_gradient) + bounds.tail[from];
    for (const Crossing::Reader& reader : crossing->readers) {
      if (!crossing->returns || (!crossing->token && reader.gradient == Bytes())) continue;
      Duration& tail = bounds.tail[reader.stage.index()];
      tail = std::max(
          tail,
          fastest_message(model, cluster, *crossing, reader.stage, crossing->from, reader.gradient) + back);
    }
  }
  return bounds;
}

// What one device must do, whatever the order.
struct DeviceLoad {
  Duration until_last_input_gradient;
  Duration all;
  Duration head = Duration::max();
  Duration tail = Duration::max();
};

std::vector<DeviceLoad> device_loads(const StagedModel& model, const Cluster& cluster,
                                     const StageBounds& bounds) {
  std::vector<DeviceLoad> loads(cluster.devices().size());
  for (std::size_t s = 0; s < model.stages.size(); ++s) {
    for (const StagedReplica& replica : model.stages[s].replicas) {
      const auto share = static_cast<std::int64_t>(replica.micro_batches.size());
      const StageTimes& t = replica.times;
      for (const DeviceId device : replica.devices) {
        DeviceLoad& load = loads[device.index()];
        const Duration before = share * (t.forward + t.recompute + t.input_gradient);
        load.until_last_input_gradient += before;
        load.all += before + share * t.weight_gradient + t.update;
        load.head = std::min(load.head, bounds.earliest[s]);
        load.tail = std::min(load.tail, bounds.tail[s]);
      }
    }
  }
  return loads;
}

}  // namespace

Bound stages_bound(const StagedModel& model, const Cluster& cluster) {
  const StageBounds bounds = stage_bounds(model, cluster);
  Bound best{.scope = Bound::Scope::kTheseStages, .time = Duration(), .why = "nothing to do"};
  const auto raise = [&](Duration time, const std::string& why) {
    if (time > best.time) best.time = time, best.why = why;
  };
  const std::vector<DeviceLoad> loads = device_loads(model, cluster, bounds);
  for (std::size_t d = 0; d < loads.size(); ++d) {
    if (loads[d].head == Duration::max()) continue;
    const std::string name = cluster.devices()[d].name;
    const auto parts = [&](Duration work, Duration tail) {
      return name + ": " + to_text(work) + " of work" +
             (loads[d].head > Duration() ? " after " + to_text(loads[d].head) : "") +
             (tail > Duration() ? ", and " + to_text(tail) + " behind it" : "");
    };
    raise(loads[d].head + loads[d].all, parts(loads[d].all, Duration()));
    raise(loads[d].head + loads[d].until_last_input_gradient + loads[d].tail,
          parts(loads[d].until_last_input_gradient, loads[d].tail));
  }
  for (std::size_t s = 0; s < model.stages.size(); ++s) {
    const StagedStage& stage = model.stages[s];
    Duration round = Duration::max();
    for (const StagedReplica& replica : stage.replicas) {
      round = std::min(round, replica.times.forward + replica.times.recompute + replica.times.input_gradient);
    }
    raise(bounds.earliest[s] + round + bounds.tail[s],
          "one micro-batch through stage " + stage.name + " and back");
  }
  return best;
}

namespace {

// Least costs of each operator over the allowed micro-batch sizes.
struct LeastCosts {
  std::vector<std::vector<double>> step;         // by kind, by operator: a whole batch, forward and backward
  std::vector<Duration> forward, input, weight;  // by operator: one micro-batch on the best kind
};

LeastCosts least_costs(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                       const Training& training) {
  const std::size_t n = graph.operators().size();
  LeastCosts result{
      std::vector(cluster.kinds().size(), std::vector<double>(n, std::numeric_limits<double>::max())),
      std::vector<Duration>(n, Duration::max()), std::vector<Duration>(n, Duration::max()),
      std::vector<Duration>(n, Duration::max())};
  for (const BatchSize size : training.micro_batches) {
    if (size < graph.batch().min || size > graph.batch().max) continue;
    const OperatorCosts at(graph, cluster, costs, size);
    const std::int64_t micro_batches = training.batch.count() / size.count();
    const auto count = static_cast<double>(micro_batches);
    for (std::size_t k = 0; k < cluster.kinds().size(); ++k) {
      for (std::size_t i = 0; i < n; ++i) {
        const OperatorCost& cost = at.of(OperatorId(i), KindId(k));
        double& step = result.step[k][i];
        step = std::min(step, count * static_cast<double>((cost.forward + cost.backward()).count()));
        result.forward[i] = std::min(result.forward[i], cost.forward);
        result.input[i] = std::min(result.input[i], cost.input_gradient);
        result.weight[i] = std::min(result.weight[i], cost.weight_gradient);
      }
    }
  }
  return result;
}

// The longest chain of one micro-batch: forward to an operator, its own backward, and back to the inputs.
Duration critical_round(const Graph& graph, const LeastCosts& costs) {
  const std::size_t n = graph.operators().size();
  std::vector<Duration> forward(n), tail(n);
  Duration longest;
  for (std::size_t i = 0; i < n; ++i) {
    tail[i] = costs.weight[i];
    for (const TensorId input : graph.op(OperatorId(i)).inputs) {
      const Tensor& tensor = graph.tensor(input);
      if (!tensor.producer) continue;
      const std::size_t p = tensor.producer->index();
      forward[i] = std::max(forward[i], forward[p]);
      if (tensor.requires_grad) tail[i] = std::max(tail[i], costs.input[p] + tail[p]);
    }
    forward[i] += costs.forward[i];
    longest = std::max(longest, forward[i] + costs.input[i] + tail[i]);
  }
  return longest;
}

// Weighted work over the devices, rounded down far enough that rounding errors cannot lift it above the
// truth.
Duration spread_work(const Cluster& cluster, const LeastCosts& costs) {
  const std::size_t kinds = cluster.kinds().size();
  std::vector<double> total(kinds, 0);
  std::vector<char> used(kinds, 0);
  for (const Device& device : cluster.devices()) used[device.kind.index()] = 1;
  for (std::size_t k = 0; k < kinds; ++k) {
    for (const double step : costs.step[k]) total[k] += step;
    if (used[k] && total[k] <= 0) return {};  // some device does everything in no time
  }
  if (std::count(used.begin(), used.end(), 1) == 1) {
    const auto k = static_cast<std::size_t>(std::find(used.begin(), used.end(), 1) - used.begin());
    return round_duration(std::ceil(total[k] / static_cast<double>(cluster.devices().size())));
  }
  double speed = 0;
  for (const Device& device : cluster.devices()) speed += 1 / total[device.kind.index()];
  double sum = 0;
  for (std::size_t i = 0; i < costs.forward.size(); ++i) {
    double cheapest = std::numeric_limits<double>::max();
    for (std::size_t k = 0; k < kinds; ++k) {
      if (used[k]) cheapest = std::min(cheapest, costs.step[k][i] / total[k] / speed);
    }
    sum += cheapest;
  }
  return round_duration(std::floor(sum * (1 - 1e-9)));
}

}  // namespace

Bound any_plan_bound(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                     const Training& training) {
  const LeastCosts cheapest = least_costs(graph, cluster, costs, training);
  Bound bound{.scope = Bound::Scope::kAnyPlan, .time = Duration(), .why = "nothing to do"};
  if (graph.operators().empty() || cheapest.forward.front() == Duration::max()) return bound;
  const Duration spread = spread_work(cluster, cheapest);
  const Duration round = critical_round(graph, cheapest);
  const std::size_t devices = cluster.devices().size();
  if (spread >= round) {
    bound.time = spread;
    bound.why = "all work spread over " + std::to_string(devices) + (devices == 1 ? " device" : " devices");
  } else {
    bound.time = round;
    bound.why = "one micro-batch along the longest path and back";
  }
  return bound;
}

}  // namespace espalier
