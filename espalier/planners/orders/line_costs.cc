#include "espalier/planners/orders/line_costs.h"

#include <algorithm>
#include <cmath>

#include "espalier/schedule/schedule.h"
#include "espalier/schedule/shares.h"

namespace espalier {
namespace {

DeviceId device_of(const StagedModel& model, StageId stage) {
  return model.stages[stage.index()].replicas.front().devices.front();
}

Duration time_of(const Route& route, Bytes bytes) {
  return route.send.of(bytes) + route.hold(bytes) + route.latency + route.receive.of(bytes);
}

void add_crossing(const StagedModel& model, const Cluster& cluster, const Crossing& crossing,
                  LineCosts& costs, std::vector<Bytes>& base) {
  const std::size_t from = crossing.from.index();
  if (crossing.saved_by_producer) {
    costs.taken[from] += crossing.output;
    if (crossing.for_input_only) costs.freed[from] += crossing.output;
  }
  for (const Crossing::Reader& reader : crossing.readers) {
    const std::size_t to = reader.stage.index();
    const DeviceId sender = device_of(model, crossing.from), receiver = device_of(model, reader.stage);
    if (sender != receiver) {
      costs.taken[to] += reader.bytes;  // a receive slot for each in flight, and one more
      base[to] += reader.bytes;
      base[from] += reader.gradient;
      base[to] += reader.gradient;
    }
    if (to != from + 1 || sender == receiver) continue;
    costs.arrives[to] = std::max(costs.arrives[to], time_of(cluster.route(sender, receiver), reader.bytes));
    if (flows_back(crossing, reader)) {
      costs.returns[from] =
          std::max(costs.returns[from], time_of(cluster.route(receiver, sender), reader.gradient));
    }
  }
}

// In place of bytes, each micro-batch takes one unit, of which I frees the same part.
void count_micro_batches(Bytes& taken, Bytes& freed) {
  constexpr std::int64_t kUnit = 1 << 20;
  const double part =
      taken > Bytes() ? static_cast<double>(freed.count()) / static_cast<double>(taken.count()) : 0;
  taken = Bytes(kUnit);
  freed = Bytes(std::llround(part * kUnit));
}

}  // namespace

LineCosts line_costs(const StagedModel& model, const Cluster& cluster, const StageLine& line,
                     std::optional<std::uint32_t> limit) {
  const std::size_t stages = model.stages.size();
  LineCosts costs;
  costs.arrives.resize(stages);
  costs.returns.resize(stages);
  std::vector<Bytes> base(stages);
  for (const StagedStage& stage : model.stages) {
    const StageTimes& times = stage.replicas.front().times;
    const StageMemory& memory = stage.memory;
    const bool split = can_split(stage);
    costs.forward.push_back(times.forward);
    costs.input.push_back(times.recompute + (split ? times.input_half() : times.backward()));
    costs.weights.push_back(split ? times.weight_half() : Duration());
    costs.taken.push_back(memory.saved);
    costs.freed.push_back(split ? memory.saved_for_input : memory.saved);
    base[costs.taken.size() - 1] = memory.parameters + memory.buffers + memory.gradients +
                                   memory.optimizer_state + memory.recomputed +
                                   std::max(memory.forward_workspace, memory.backward_workspace);
  }
  for (const Crossing& crossing : model.crossings) add_crossing(model, cluster, crossing, costs, base);
  for (std::size_t place = 0; place < line.places(); ++place) {
    Bytes held, one;
    for (std::size_t chunk = 0; chunk < line.chunks; ++chunk) {
      const std::size_t stage = line.stage(place, chunk).index();
      if (limit) count_micro_batches(costs.taken[stage], costs.freed[stage]);
      held += base[stage];
      one += costs.taken[stage];
    }
    const Bytes memory = cluster.device(line.devices[place]).memory;
    costs.room.push_back(limit ? Bytes(one.count() * *limit) : std::max(memory, held) - held);
  }
  return costs;
}

}  // namespace espalier
