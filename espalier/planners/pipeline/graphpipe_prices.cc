#include "espalier/planners/pipeline/graphpipe_prices.h"

#include <algorithm>
#include <set>

#include "espalier/base/check.h"

namespace espalier::internal {

std::int64_t StageNeeds::most_in_flight(Bytes device) const {
  const std::int64_t left = (device - memory.base).count(), each = memory.per_in_flight.count();
  if (left < 0) return 0;
  return each <= 0 ? kMaxMicroBatches : left / each;
}

PlacePrices::PlacePrices(const Linearization& line, const DeviceTable& table, BatchSize micro_batch,
                         MemoryRule rule)
    : line_(line),
      table_(table),
      micro_batch_(micro_batch),
      micro_batches_(line.problem().training.batch.count() / micro_batch.count()),
      rule_(rule),
      scratch_(StagePrices::make_scratch()) {
  const Problem& problem = line.problem();
  std::set<KindId> kinds;
  for (const Device& device : problem.cluster.devices()) kinds.insert(device.kind);
  kinds_.assign(kinds.begin(), kinds.end());
  work_before_.resize(problem.cluster.kinds().size());
  lacks_before_.resize(problem.cluster.kinds().size());
  for (const KindId kind : kinds_) {
    const KindCosts costs(problem.graph, problem.cluster.kind(kind), problem.costs, micro_batch);
    std::vector<std::int64_t>& work = work_before_[kind.index()];
    std::vector<std::uint32_t>& lacks = lacks_before_[kind.index()];
    work.push_back(0);
    lacks.push_back(0);
    for (const OperatorId op : line.order()) {
      const OperatorCost* cost = costs.of(op);
      work.push_back(work.back() + (cost ? (cost->forward + cost->backward()).count() : 0));
      lacks.push_back(lacks.back() + (cost ? 0 : 1));
    }
  }
  for (const ComputeClass& each : table.classes()) {
    const std::string& kind = problem.cluster.kind(each.kind).name;
    per_mille_slower_.push_back(
        each.crowd == Crowd::kAlone ? 0 : problem.costs.overhead(kind).neighbour_per_mille);
  }
  writers_before_.push_back(0);
  for (const OperatorId op : line.order()) {
    writers_before_.push_back(writers_before_.back() + (writes_buffer(problem.graph, op) ? 1 : 0));
  }
}

std::int64_t PlacePrices::compute_alone(std::uint32_t compute_class, const PlaceRanges& places) const {
  const KindId kind = table_.classes()[compute_class].kind;
  const auto& work = work_before_[kind.index()];
  const auto& lacks = lacks_before_[kind.index()];
  std::int64_t sum = 0;
  for (const Places& each : places) {
    if (lacks[each.end] != lacks[each.begin]) return -1;
    sum += work[each.end] - work[each.begin];
  }
  return sum;
}

std::int64_t PlacePrices::compute(std::uint32_t compute_class, const PlaceRanges& places) const {
  const std::int64_t alone = compute_alone(compute_class, places);
  return alone < 0 ? alone : in_company(compute_class, alone);
}

const StageNeeds& PlacePrices::needs(const PlaceRanges& places, const StageWay& way) {
  const std::lock_guard lock(mutex_);
  if (way.degree > 1 || !way.again.empty()) {
    const std::pair key(places, way);
    const auto at = known_ways_.lower_bound(key);
    if (at != known_ways_.end() && at->first == key) return at->second;
    return known_ways_.emplace_hint(at, key, ask(places, way))->second;
  }
  const auto at = known_.lower_bound(places);
  if (at != known_.end() && at->first == places) return at->second;
  return known_.emplace_hint(at, places, ask(places, way))->second;
}

std::vector<OperatorRun> PlacePrices::runs(const PlaceRanges& places) const {
  std::vector<OperatorRun> runs;
  for (const Places& each : places) runs.push_back(line_.run(each.begin, each.end - 1));
  return runs;
}

std::vector<OperatorRun> PlacePrices::repeated(const PlaceRanges& places) const {
  std::vector<OperatorRun> runs;
  for (const Places& each : places) {
    for (std::uint32_t place = each.begin; place < each.end; ++place) {
      if (!line_.problem().graph.op(line_[place]).mutates.empty()) continue;
      const OperatorRun run = line_.run(place, place);
      if (!runs.empty() && runs.back().last + 1 == run.first) {
        runs.back().last = run.last;
      } else {
        runs.push_back(run);
      }
    }
  }
  return runs;
}

// Of single devices from the sums, of groups by asking.
std::vector<KindId> PlacePrices::able_kinds(const PlaceRanges& places, std::uint32_t degree) {
  const std::vector<OperatorRun> operators = runs(places);
  std::vector<KindId> able;
  for (const KindId kind : kinds_) {
    const auto& lacks = lacks_before_[kind.index()];
    const bool can = degree > 1 ? !line_.prices()
                                       .price({.operators = operators,
                                               .recompute = {},
                                               .micro_batch = micro_batch_,
                                               .degree = degree,
                                               .kinds = std::span(&kind, 1)},
                                              *scratch_)
                                       .forbidden
                                : std::all_of(places.begin(), places.end(), [&](const Places& each) {
                                    return lacks[each.end] == lacks[each.begin];
                                  });
    if (can) able.push_back(kind);
  }
  return able;
}

StageNeeds PlacePrices::ask(const PlaceRanges& places, const StageWay& way) {
  StageNeeds needs;
  for (const Places& each : places) {
    needs.writes_buffers = needs.writes_buffers || writers_before_[each.end] != writers_before_[each.begin];
    for (std::uint32_t place = each.begin; place < each.end && !line_.problem().pins.empty(); ++place) {
      const auto mine = line_.pin(place);
      needs.pin.torn = needs.pin.torn || (mine && needs.pin.device && *mine != *needs.pin.device);
      if (mine) needs.pin.device = mine;
    }
  }
  const bool plain = way.degree == 1 && way.again.empty();
  for (std::uint32_t c = 0; c < table_.classes().size(); ++c) {
    needs.compute.push_back(plain ? compute(c, places) : -1);
  }
  const std::vector<KindId> able = able_kinds(places, way.degree);
  if (able.empty()) return needs;
  const std::vector<OperatorRun> operators = runs(places), again = repeated(way.again);
  const StagePrice& price = line_.prices().price({.operators = operators,
                                                  .recompute = again,
                                                  .micro_batch = micro_batch_,
                                                  .degree = way.degree,
                                                  .kinds = able},
                                                 *scratch_);
  ESP_CHECK(!price.forbidden);
  for (std::uint32_t c = 0; c < table_.classes().size() && !plain; ++c) {
    const ComputeClass& compute = table_.classes()[c];
    const auto at = std::find(able.begin(), able.end(), compute.kind);
    if (at == able.end()) continue;
    const StagePrice::Times& times = price.times[static_cast<std::size_t>(at - able.begin())];
    const Duration sum = times.forward + times.input_gradient + times.weight_gradient + times.recompute;
    needs.compute[c] = in_company(c, sum.count()) + (again.empty() ? 0 : compute.actions.count() / 2);
  }
  needs.memory = block_price(line_, micro_batch_, price, *scratch_);
  if (rule_ == MemoryRule::kLiteral) {
    const StageMemory& memory = price.memory;
    needs.memory.base = memory.parameters + memory.gradients + memory.optimizer_state + memory.buffers +
                        std::max(memory.forward_workspace, memory.backward_workspace);
    needs.memory.per_in_flight = memory.saved;
  }
  for (const StagePrice::Received& each : price.received) {
    const Bytes bytes = line_.prices().tensor_bytes(each.tensor, micro_batch_, *scratch_);
    needs.received += bytes;
    if (each.gradient) needs.gradients_out += bytes;
  }
  for (const StagePrice::Output& each : price.outputs) {
    needs.sent += each.bytes;
    if (line_.graph().tensor(each.tensor).requires_grad) needs.gradients_in += each.bytes;
  }
  return needs;
}

StageBorder PlacePrices::border(const PlaceRanges& places) {
  const std::vector<OperatorRun> operators = runs(places);
  const std::lock_guard lock(mutex_);
  StageBorder border;
  const std::vector<KindId> able = able_kinds(places, 1);
  if (able.empty()) return border;
  const StagePrice& price = line_.prices().price(
      {.operators = operators, .recompute = {}, .micro_batch = micro_batch_, .kinds = able}, *scratch_);
  border.gradients = price.memory.gradients;
  for (const StagePrice::Received& each : price.received) {
    border.received.push_back({each.tensor, Bytes(), each.gradient});
  }
  for (const StagePrice::Output& each : price.outputs) {
    border.sent.push_back({each.tensor, each.bytes, line_.graph().tensor(each.tensor).requires_grad});
  }
  for (StageBorder::Tensor& each : border.received) {
    each.bytes = line_.prices().tensor_bytes(each.tensor, micro_batch_, *scratch_);
  }
  return border;
}

std::int64_t PlacePrices::collectives(const PlaceRanges& places, const StageWay& way,
                                      const std::vector<DeviceId>& group) {
  const std::vector<OperatorRun> operators = runs(places), again = repeated(way.again);
  const std::lock_guard lock(mutex_);
  Duration most;
  for (const DeviceId device : group) {
    const KindId kind = line_.problem().cluster.device(device).kind;
    const StagePrice::Times times = line_.prices().collectives({.operators = operators,
                                                                .recompute = again,
                                                                .micro_batch = micro_batch_,
                                                                .degree = way.degree,
                                                                .kinds = std::span(&kind, 1)},
                                                               kind, group, *scratch_);
    most = std::max(most, times.forward + times.input_gradient + times.recompute);
  }
  return most.count();
}

std::int64_t PlacePrices::replica_time(const StageNeeds& needs, const ComputeClass& compute,
                                       std::int64_t work) const {
  Duration messages;
  if (needs.received > Bytes()) messages += compute.receive.of(needs.received);
  if (needs.gradients_out > Bytes()) messages += compute.send.of(needs.gradients_out);
  if (needs.sent > Bytes()) messages += compute.send.of(needs.sent);
  if (needs.gradients_in > Bytes()) messages += compute.receive.of(needs.gradients_in);
  return work + (compute.actions + messages).count();
}

std::optional<std::int64_t> PlacePrices::step_time(const StageNeeds& needs, const RunClass& run,
                                                   const Hop& hop, std::int64_t elsewhere) const {
  std::int64_t time = 0;
  for (const RunClass::Load& load : run.loads) {
    const std::int64_t work = needs.compute[load.compute];
    if (work < 0) return std::nullopt;
    const ComputeClass& compute = table_.classes()[load.compute];
    time = std::max(time, load.share * replica_time(needs, compute, work) + elsewhere +
                              table_.update(compute.kind, needs.memory.trainable).count());
  }
  time += run.all_reduce(table_, needs.memory.trainable).count();
  const Bytes most =
      std::max(std::max(needs.received, needs.sent), std::max(needs.gradients_out, needs.gradients_in));
  return std::max(time, run.share * hop.hold(most).count());
}

std::int64_t PlacePrices::micro_batch_time(const StageNeeds& needs, const RunClass& run) const {
  std::int64_t time = 0;
  for (const RunClass::Load& load : run.loads) {
    time = std::max(time, replica_time(needs, table_.classes()[load.compute], needs.compute[load.compute]));
  }
  return time;
}

}  // namespace espalier::internal
