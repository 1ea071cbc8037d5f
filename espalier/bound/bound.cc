#include "espalier/bound/bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "espalier/base/check.h"
#include "espalier/schedule/schedule.h"

// Both bounds say only what every order of actions must obey.
//
//   earliest(x)   no F of stage x starts before: the longest chain of one F per stage and the latencies to x
//   tail(x)       after the end of an I of x: its W and update, or the message back and the I's of a chain of
//   predecessors and their tails
//
// Device d, whose stages are X: T ≥ min earliest(x) + Σ (F + R + I) + min tail(x), because its first action
// is an F and the last I on it has a tail; and T ≥ min earliest(x) + Σ (F + R + B) + updates. A backward that
// is not split is an I followed by its W, so both hold for it too; the overhead of its action goes with I.
//
// Any plan, work: for weights y_d ≥ 0 of the devices with Σ y_d = 1, T ≥ Σ_op min_d y_d · w_d(op): a device's
// load is at most T, and each operator adds at least its least weighted cost somewhere (weak duality of the
// assignment problem on unrelated machines, Lenstra, Shmoys, Tardos, 1990). y_d is proportional to the speed
// at which d would do everything; with devices of one kind this is the total over their number. A group of g
// devices that share an operator adds to each of them what the cell for g says: w_d(op) is the least of g
// times that over all g, and over all micro-batches. Recomputation, copies and messages only add.

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
    // Readers on one device share a message, so each may get by with another's bytes.
    Bytes least_bytes = Bytes::max(), least_gradient = Bytes::max();
    for (const Crossing::Reader& reader : crossing->readers) {
      least_bytes = std::min(least_bytes, reader.bytes);
      if (crossing->token || reader.gradient > Bytes())
        least_gradient = std::min(least_gradient, reader.gradient);
    }
    for (const Crossing::Reader& reader : crossing->readers) {
      Duration& earliest = bounds.earliest[reader.stage.index()];
      earliest = std::max(earliest, sent + fastest_message(model, cluster, *crossing, crossing->from,
                                                           reader.stage, least_bytes));
    }
    const Duration back = least(model.stages[from], &StageTimes::input_gradient) +
                          least(model.stages[from], &StageTimes::overhead) + bounds.tail[from];
    for (const Crossing::Reader& reader : crossing->readers) {
      if (!crossing->returns || (!crossing->token && reader.gradient == Bytes())) continue;
      Duration& tail = bounds.tail[reader.stage.index()];
      tail = std::max(
          tail,
          fastest_message(model, cluster, *crossing, reader.stage, crossing->from, least_gradient) + back);
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
        const Duration before = share * (t.forward + t.recompute + t.input_half());
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
      round = std::min(round, replica.times.forward + replica.times.recompute + replica.times.input_half());
    }
    raise(bounds.earliest[s] + round + bounds.tail[s],
          "one micro-batch through stage " + stage.name + " and back");
  }
  return best;
}

namespace {

// What bounds may suppose of each operator: the least over all that a plan may choose.
struct LeastCosts {
  // By kind, by operator: device time of a whole batch, forward and backward, of all devices of a group
  // together. kNoCell where this kind cannot run it.
  std::vector<std::vector<double>> step;
  std::vector<Duration> forward, input, weight;  // by operator: one micro-batch
};
constexpr double kNoCell = std::numeric_limits<double>::max();

// Sizes that a plan of this batch may have.
std::vector<BatchSize> divisors(const Graph& graph, BatchSize batch) {
  std::vector<BatchSize> sizes;
  const BatchRange range = graph.batch();
  for (std::int64_t count = 1; count <= std::min(batch.count(), kMaxMicroBatches); ++count) {
    if (batch.count() % count != 0) continue;
    const BatchSize size(batch.count() / count);
    if (size >= range.min && size <= range.max) sizes.push_back(size);
  }
  return sizes;
}

// Sizes of tensor-parallel groups that some cell is for; 1 among them.
std::vector<std::uint32_t> degrees(const Cluster& cluster, const CostTable& costs) {
  std::set<std::uint32_t> found{1};
  for (const CostRow& row : costs.parts().rows) {
    const std::uint32_t degree = row.variant.tensor_parallel;
    if (!row.variant.recompute && degree <= cluster.devices().size()) found.insert(degree);
  }
  return {found.begin(), found.end()};
}

void lower(LeastCosts& least, std::size_t op, std::size_t kind, const OperatorCost& cost,
           double devices_times_micro_batches) {
  double& step = least.step[kind][op];
  step = std::min(
      step, devices_times_micro_batches * static_cast<double>((cost.forward + cost.backward()).count()));
  least.forward[op] = std::min(least.forward[op], cost.forward);
  least.input[op] = std::min(least.input[op], cost.input_gradient);
  least.weight[op] = std::min(least.weight[op], cost.weight_gradient);
}

LeastCosts least_costs(const Graph& graph, const Cluster& cluster, const std::vector<char>& used,
                       const CostTable& costs, const Training& training) {
  const std::size_t n = graph.operators().size();
  LeastCosts least{std::vector(cluster.kinds().size(), std::vector<double>(n, kNoCell)),
                   std::vector<Duration>(n, Duration::max()), std::vector<Duration>(n, Duration::max()),
                   std::vector<Duration>(n, Duration::max())};
  const std::vector<std::uint32_t> groups = degrees(cluster, costs);
  for (const BatchSize size : divisors(graph, training.batch)) {
    const std::int64_t count = training.batch.count() / size.count();
    const auto micro_batches = static_cast<double>(count);
    for (const std::uint32_t degree : groups) {
      for (std::size_t k = 0; k < cluster.kinds().size(); ++k) {
        if (!used[k]) continue;
        const KindCosts at(graph, cluster.kinds()[k], costs, size, {degree, false});
        for (std::size_t i = 0; i < n; ++i) {
          if (const OperatorCost* cost = at.of(OperatorId(i))) {
            lower(least, i, k, *cost, micro_batches * degree);
          }
        }
      }
    }
  }
  for (std::size_t i = 0; i < n; ++i) {  // nothing can run it: no plan at all, so any bound holds
    if (least.forward[i] == Duration::max()) {
      least.forward[i] = least.input[i] = least.weight[i] = Duration();
    }
  }
  return least;
}

bool has_backward(const Graph& graph, const Operator& op) {
  return std::any_of(op.outputs.begin(), op.outputs.end(),
                     [&](TensorId id) { return graph.tensor(id).requires_grad; });
}

// The longest chain of one sample: forward to an operator, its own backward, and back to the inputs. The
// backward of a tensor's producer waits for its readers only if they have a backward themselves, and where
// something is sent.
Duration critical_round(const Graph& graph, const LeastCosts& costs) {
  const std::size_t n = graph.operators().size();
  std::vector<Duration> forward(n), tail(n);
  Duration longest;
  for (std::size_t i = 0; i < n; ++i) {
    const Operator& op = graph.op(OperatorId(i));
    const bool returns = has_backward(graph, op);
    tail[i] = costs.weight[i];
    for (const TensorId input : op.inputs) {
      const Tensor& tensor = graph.tensor(input);
      if (!tensor.producer) continue;
      const std::size_t p = tensor.producer->index();
      forward[i] = std::max(forward[i], forward[p]);
      if (returns && tensor.requires_grad && tensor.bytes(BatchSize(1)) > Bytes()) {
        tail[i] = std::max(tail[i], costs.input[p] + tail[p]);
      }
    }
    forward[i] += costs.forward[i];
    longest = std::max(longest, forward[i] + costs.input[i] + tail[i]);
  }
  return longest;
}

// By kind: an update of all parameters, as far as it grows with their bytes. A stage's is rounded to whole
// nanoseconds, so there is one less for each operator that reads a parameter.
std::vector<double> update_work(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                                const Training& training) {
  std::vector<char> read(graph.parameters().size(), 0);
  double readers = 0;
  for (const Operator& op : graph.operators()) {
    if (op.role != OperatorRole::kForward) return std::vector<double>(cluster.kinds().size(), 0);
    bool reads = false;
    for (const TensorId input : op.inputs) {
      const auto parameter = graph.tensor(input).parameter;
      if (!parameter || !graph.parameter(*parameter).trainable) continue;
      read[parameter->index()] = 1;
      reads = true;
    }
    readers += reads ? 1 : 0;
  }
  double bytes = 0;
  for (std::size_t p = 0; p < read.size(); ++p) {
    if (read[p]) bytes += static_cast<double>(graph.parameters()[p].bytes().count());
  }
  std::vector<double> work;
  for (const DeviceKind& kind : cluster.kinds()) {
    double each = 0;
    for (const KindOverhead::Update& update : costs.overhead(kind.name).updates) {
      if (update.optimizer == training.optimizer.kind)
        each = static_cast<double>(update.picoseconds_per_byte);
    }
    work.push_back(std::max(0.0, bytes * each / 1000 / kind.speed - readers));
  }
  return work;
}

// Weighted work over the devices, rounded down far enough that rounding errors cannot lift it above the
// truth. `step`: by kind, by piece of work.
Duration spread_work(const Cluster& cluster, const std::vector<char>& used,
                     const std::vector<std::vector<double>>& step) {
  const std::size_t kinds = cluster.kinds().size();
  std::vector<double> total(kinds, 0);
  for (std::size_t k = 0; k < kinds; ++k) {
    for (const double each : step[k]) total[k] += each == kNoCell ? 0 : each;
    if (used[k] && total[k] <= 0) return {};  // some device does everything in no time
  }
  double speed = 0;
  for (const Device& device : cluster.devices()) speed += 1 / total[device.kind.index()];
  double sum = 0;
  for (std::size_t i = 0; i < step.front().size(); ++i) {
    double cheapest = kNoCell;
    for (std::size_t k = 0; k < kinds; ++k) {
      if (used[k] && step[k][i] != kNoCell) cheapest = std::min(cheapest, step[k][i] / total[k] / speed);
    }
    if (cheapest != kNoCell) sum += cheapest;
  }
  if (std::count(used.begin(), used.end(), 1) > 1) return round_duration(std::floor(sum * (1 - 1e-9)));
  const auto only = static_cast<std::size_t>(std::find(used.begin(), used.end(), 1) - used.begin());
  return round_duration(std::ceil(total[only] * (1 - 1e-12) / static_cast<double>(cluster.devices().size())));
}

}  // namespace

Bound any_plan_bound(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                     const Training& training) {
  Bound bound{.scope = Bound::Scope::kAnyPlan, .time = Duration(), .why = "nothing to do"};
  if (graph.operators().empty()) return bound;
  std::vector<char> used(cluster.kinds().size(), 0);
  for (const Device& device : cluster.devices()) used[device.kind.index()] = 1;
  LeastCosts least = least_costs(graph, cluster, used, costs, training);
  const Duration round = critical_round(graph, least);
  const std::vector<double> update = update_work(graph, cluster, costs, training);
  for (std::size_t k = 0; k < update.size(); ++k) least.step[k].push_back(update[k]);
  const Duration spread = spread_work(cluster, used, least.step);
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
