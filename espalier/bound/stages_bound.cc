#include "espalier/bound/bound.h"

#include <algorithm>
#include <vector>

// Only what every order of actions must obey.
//
//   earliest(x)   no F of stage x starts before: the longest chain of one F per stage and the latencies to x
//   tail(x)       after the end of an I of x: its W and update, or the message back and the I's of a chain of
//   predecessors and their tails
//
// Device d, whose stages are X: T ≥ min earliest(x) + Σ (F + R + I) + min tail(x), because its first action
// is an F and the last I on it has a tail; and T ≥ min earliest(x) + Σ (F + R + B) + updates. A backward that
// is not split is an I followed by its W, so both hold for it too; the overhead of its action goes with I.

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

}  // namespace espalier
