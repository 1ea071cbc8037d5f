#include "espalier/sim/price_tables.h"

#include <algorithm>

#include "espalier/base/check.h"

namespace espalier::internal {
namespace {

using Storage = PriceGraph::Storage;

Storage::Kind storage_kind(const Tensor& tensor) {
  switch (tensor.role) {
    case TensorRole::kActivation:
      return Storage::Kind::kOwn;
    case TensorRole::kInput:
      return Storage::Kind::kInput;
    default:
      return Storage::Kind::kState;
  }
}

}  // namespace

PriceGraph::PriceGraph(const Graph& g) : graph(g) {
  const std::size_t count = graph.operators().size();
  storages.resize(graph.storage_count() + 1);
  std::vector<std::uint32_t> places;  // by tensor
  for (const Tensor& tensor : graph.tensors()) places.push_back(storages[tensor.storage.index()].tensors++);
  std::vector<std::vector<Touch>> touched(graph.storage_count());
  for (std::uint32_t op = 0; op < count; ++op) {
    const Operator& what = graph.operators()[op];
    FlatOperator flat;
    flat.duplicable = what.duplicable;
    for (const TensorId id : what.outputs) flat.has_backward |= graph.tensor(id).requires_grad;
    operators.push_back(flat);
    for (const auto* list : {&what.inputs, &what.outputs}) {
      for (const TensorId id : *list) {
        const Tensor& tensor = graph.tensor(id);
        Storage& storage = storages[tensor.storage.index()];
        const auto number = static_cast<std::uint32_t>(id.index());
        if (storage.kind == Storage::Kind::kUnused) {
          storage.kind = storage_kind(tensor);
          storage.first = storage.gradient_end = op;
          storage.requires_grad = tensor.requires_grad;
          storage.duplicable = what.duplicable;
          storage.tensor = number;
        } else if (storage.tensor != number) {
          storage.kind = Storage::Kind::kOdd;
        }
        // The gradient that an update reads is counted with the gradients: the walk knows that.
        if (what.role == OperatorRole::kUpdate && tensor.producer) storage.kind = Storage::Kind::kOdd;
        storage.with_input |= tensor.role == TensorRole::kInput;
        storage.last = op;
        if (flat.has_backward && list == &what.inputs) storage.gradient_end = op;
        touched[tensor.storage.index()].push_back({op, number, places[number], list == &what.outputs});
      }
    }
  }
  begun_before.assign(count + 2, 0);
  for (std::uint32_t s = 0; s < storages.size(); ++s) {
    Storage& storage = storages[s];
    storage.touches = static_cast<std::uint32_t>(touches.size());
    if (storage.kind == Storage::Kind::kUnused) continue;
    // An activation that nobody here makes is as odd as several tensors.
    if (storage.kind == Storage::Kind::kOwn && !graph.tensors()[storage.tensor].producer) {
      storage.kind = Storage::Kind::kOdd;
    }
    if (storage.kind == Storage::Kind::kOdd)
      touches.insert(touches.end(), touched[s].begin(), touched[s].end());
    if (storage.with_input) {
      with_inputs.push_back(s);
    } else {
      ++begun_before[storage.first + 2];
    }
  }
  for (std::size_t i = 1; i < begun_before.size(); ++i) begun_before[i] += begun_before[i - 1];
  by_first.resize(begun_before.back());
  for (std::uint32_t s = 0; s < storages.size(); ++s) {
    if (storages[s].kind == Storage::Kind::kUnused || storages[s].with_input) continue;
    by_first[begun_before[storages[s].first + 1]++] = s;
  }
  begun_before.pop_back();

  // Storages alive at every stride-th cut, few enough for linear room.
  std::size_t widths = 0;
  for (const std::uint32_t s : by_first) widths += storages[s].last - storages[s].first;
  while (widths / stride > 8 * count) stride *= 2;
  std::vector<std::vector<std::uint32_t>> lists(count / stride + 1);
  for (const std::uint32_t s : by_first) {
    for (std::size_t cut = storages[s].first / stride + 1; cut * stride <= storages[s].last; ++cut) {
      lists[cut].push_back(s);
    }
  }
  listed_begin = {0};
  for (const auto& list : lists) {
    listed.insert(listed.end(), list.begin(), list.end());
    listed_begin.push_back(static_cast<std::uint32_t>(listed.size()));
  }
}

KindTable::KindTable(const Graph& graph, const DeviceKind& kind, const CostTable& table,
                     BatchSize micro_batch, std::uint32_t degree)
    : costs(graph, kind, table, micro_batch, {degree, false}) {
  before.emplace_back();
  for (std::size_t op = 0; op < graph.operators().size(); ++op) {
    Before next = before.back();
    if (const OperatorCost* cost = costs.of(OperatorId(op))) {
      next.times.forward += cost->forward;
      next.times.input_gradient += cost->input_gradient;
      next.times.weight_gradient += cost->weight_gradient;
    } else {
      ++next.forbidden;
    }
    before.push_back(next);
  }
}

ReduceTable::ReduceTable(const Graph& graph, const KindTable& kind, const Cluster& cluster,
                         std::span<const DeviceId> group) {
  before.emplace_back();
  for (std::size_t op = 0; op < graph.operators().size(); ++op) {
    Before next = before.back();
    if (const OperatorCost* cost = kind.costs.of(OperatorId(op))) {
      next.forward += reduce_time(cluster, group, cost->reduced_forward);
      next.input_gradient += reduce_time(cluster, group, cost->reduced_backward);
    }
    before.push_back(next);
  }
}

PriceReduceKey reduce_key(const PriceKindKey& kind, const Cluster& cluster, std::span<const DeviceId> group) {
  PriceReduceKey key{kind, {}};
  for (std::size_t i = 0; i < group.size(); ++i) {
    const Route route = cluster.route(group[i], group[(i + 1) % group.size()]);
    key.routes.push_back({route.bandwidth.value_or(0), route.latency.count(), route.send.fixed.count(),
                          route.send.picoseconds_per_byte, route.receive.fixed.count(),
                          route.receive.picoseconds_per_byte});
  }
  std::sort(key.routes.begin(), key.routes.end());
  key.routes.erase(std::unique(key.routes.begin(), key.routes.end()), key.routes.end());
  return key;
}

MemoryTable::MemoryTable(const PriceGraph& flat, std::span<const KindTable* const> kinds,
                         const std::vector<std::int64_t>& tensor_bytes, std::uint32_t degree,
                         std::vector<std::int64_t> updates)
    : flat_(flat), degree_(degree), tensor_bytes_(tensor_bytes) {
  for (std::int64_t& bytes : updates) bytes = share_of(bytes);
  update = RangeMaximum(std::move(updates));
  add_costs(kinds);
  add_storages();
}

// Bytes that any kind needs: replicas of one stage hold the same.
void MemoryTable::add_costs(std::span<const KindTable* const> kinds) {
  const Graph& graph = flat_.graph;
  rows[0].emplace_back();
  saved_begin_.push_back(0);
  for (std::size_t i = 0; i < graph.operators().size(); ++i) {
    const Operator& op = graph.operators()[i];
    std::int64_t private_bytes = 0, for_weights = 0, between_halves = 0, workspace = 0, fresh_gradients = 0;
    for (const KindTable* kind : kinds) {
      const OperatorCost* cost = kind->costs.of(OperatorId(i));
      if (!cost) continue;
      private_bytes = std::max(private_bytes, cost->private_bytes.count());
      for_weights = std::max(for_weights, (cost->private_bytes - cost->private_for_input).count());
      between_halves = std::max(between_halves, cost->between_halves.count());
      workspace = std::max(workspace, cost->workspace.count());
      for (const SavedTensor& saved : cost->saved) {
        const bool input = saved.side == SavedTensor::Side::kInput;
        const auto& tensors = input ? op.inputs : op.outputs;
        if (saved.index >= tensors.size()) {
          throw InputError("the cost of '" + op.op_class + "' saves " + (input ? "input " : "output ") +
                           std::to_string(saved.index) + ", but operator '" + op.name + "' has " +
                           std::to_string(tensors.size()));
        }
        saved_.push_back({narrow(tensors[saved.index].index()),
                          saved.for_input_only ? Keeps::kForInput : Keeps::kForWeights});
      }
    }
    const auto first = saved_.begin() + saved_begin_.back();
    std::sort(first, saved_.end(), [](const Kept& a, const Kept& b) {
      return a.tensor != b.tensor ? a.tensor < b.tensor : a.how > b.how;
    });
    saved_.erase(
        std::unique(first, saved_.end(), [](const Kept& a, const Kept& b) { return a.tensor == b.tensor; }),
        saved_.end());
    saved_begin_.push_back(static_cast<std::uint32_t>(saved_.size()));
    // A parameter's gradient of one micro-batch exists beside the sum it is added to.
    for (auto at = op.inputs.begin(); at != op.inputs.end(); ++at) {
      const auto parameter = graph.tensor(*at).parameter;
      if (parameter && graph.parameter(*parameter).trainable && std::find(op.inputs.begin(), at, *at) == at) {
        fresh_gradients += share_of(graph.parameter(*parameter).bytes().count());
      }
    }
    Row next = rows[0].back();
    next.private_bytes += private_bytes;
    next.private_for_input += private_bytes - for_weights;
    next.between_halves += between_halves;
    rows[0].push_back(next);
    forward_own_.push_back(workspace);
    backward_own_.push_back(flat_.operators[i].has_backward ? workspace + fresh_gradients : 0);
  }
}

void MemoryTable::add_storages() {
  const std::size_t count = flat_.operators.size();
  kept_.assign(flat_.storages.size(), Keeps::kNo);
  for (const Kept& kept : saved_) {
    Keeps& how = kept_[flat_.graph.tensors()[kept.tensor].storage.index()];
    how = std::max(how, kept.how);
  }
  for (const PriceGraph::Touch& touch : flat_.touches) touch_keeps_.push_back(keeps(touch.op, touch.tensor));
  add_odd_storages();
  std::vector<std::int64_t> live[3];  // forward by again, backward: changes, then sums
  for (auto& each : live) each.assign(count + 1, 0);
  rows[1] = rows[0];
  PriceSink sink;
  const auto add = [](std::vector<std::int64_t>& changes, const std::vector<PriceInterval>& intervals) {
    for (const PriceInterval& interval : intervals) {
      changes[interval.first] += interval.bytes;
      changes[interval.last + 1] -= interval.bytes;
    }
  };
  for (const std::uint32_t s : flat_.by_first) {
    const Storage& storage = flat_.storages[s];
    for (int again = 0; again < 2; ++again) {
      sink.clear();
      measure_whole(s, again, sink);
      rows[again][storage.first + 1].begun += sink.sums;
      rows[again][storage.last + 1].ended += sink.sums;
      add(live[again], sink.forward);
      if (again == 0) add(live[2], sink.backward);
    }
  }
  for (int again = 0; again < 2; ++again) {
    for (std::size_t op = 1; op <= count; ++op) {
      rows[again][op].begun += rows[again][op - 1].begun;
      rows[again][op].ended += rows[again][op - 1].ended;
    }
  }
  for (auto& each : live) {
    for (std::size_t op = 1; op <= count; ++op) each[op] += each[op - 1];
    each.pop_back();
  }
  for (std::size_t op = 0; op < count; ++op) {
    live[0][op] += forward_own_[op];
    live[1][op] += forward_own_[op];
    live[2][op] += backward_own_[op];
  }
  forward[0] = RangeMaximum(std::move(live[0]));
  forward[1] = RangeMaximum(std::move(live[1]));
  backward = RangeMaximum(std::move(live[2]));
}

// A walk over all that touch such a storage is asked for at each border that it spans: it is taken once.
void MemoryTable::add_odd_storages() {
  odd_place_.assign(flat_.storages.size(), 0);
  PriceSink sink;
  for (const std::uint32_t s : flat_.by_first) {
    if (flat_.storages[s].kind != Storage::Kind::kOdd) continue;
    odd_place_[s] = narrow(odd_[0].size());
    for (int again = 0; again < 2; ++again) {
      sink.clear();
      const PriceSegment all{0, narrow(flat_.operators.size()) - 1, again == 1};
      measure(s, {&all, 1}, sink);
      odd_[again].push_back({sink.sums, sink.forward, sink.backward});
    }
  }
}

MemoryTable::Keeps MemoryTable::keeps(std::uint32_t op, std::uint32_t tensor) const {
  for (std::uint32_t i = saved_begin_[op]; i < saved_begin_[op + 1]; ++i) {
    if (saved_[i].tensor == tensor) return saved_[i].how;
  }
  return Keeps::kNo;
}

void MemoryTable::add_state(std::uint32_t tensor, PriceSink& sink, bool shared) const {
  const std::optional<ParameterId> parameter = flat_.graph.tensors()[tensor].parameter;
  const bool trainable = parameter && flat_.graph.parameter(*parameter).trainable;
  (trainable ? sink.sums.parameters : sink.sums.buffers) += share_of(bytes_of(tensor));
  if (trainable && shared) sink.shared_parameters.push_back(*parameter);
}

void MemoryTable::measure_whole(std::uint32_t index, int again, PriceSink& sink) const {
  const Storage& storage = flat_.storages[index];
  if (storage.kind == Storage::Kind::kState) return add_state(storage.tensor, sink, false);
  if (storage.kind == Storage::Kind::kOdd) {
    const Whole& whole = odd_[again][odd_place_[index]];
    sink.sums += whole.sums;
    sink.forward.insert(sink.forward.end(), whole.forward.begin(), whole.forward.end());
    sink.backward.insert(sink.backward.end(), whole.backward.begin(), whole.backward.end());
    return;
  }
  if (storage.kind == Storage::Kind::kUnused) return;
  const std::int64_t bytes = bytes_of(storage.tensor);
  const bool kept = kept_[index] != Keeps::kNo;
  if (kept) {
    const std::int64_t for_input = kept_[index] == Keeps::kForInput ? bytes : 0;
    (again ? sink.sums.recomputed : sink.sums.saved) += bytes;
    (again ? sink.sums.recomputed_for_input : sink.sums.saved_for_input) += for_input;
  }
  if (again || !kept) sink.forward.push_back({storage.first, storage.last, bytes});
  if (storage.requires_grad) {
    sink.backward.push_back({storage.first, storage.gradient_end, bytes});
  }
}

// One tensor that some operator makes, or an input of the model.
void MemoryTable::measure_own(const Storage& storage, std::span<const PriceSegment> stage,
                              PriceSink& sink) const {
  const std::uint32_t tensor = storage.tensor;
  const bool input = storage.kind == Storage::Kind::kInput;
  const PriceSegment* const producer = input ? nullptr : segment_of(stage, storage.first);
  const bool made_again = producer && producer->again;
  std::uint32_t last = storage.first, last_gradient = storage.first;
  bool kept = false, kept_again = false, for_weights = false, gradient = false;
  const auto note_kept = [&](std::uint32_t op, bool again) {
    const Keeps how = keeps(op, tensor);
    if (how != Keeps::kNo) (again && made_again ? kept_again : kept) = true;
    if (how == Keeps::kForWeights) for_weights = true;
  };
  if (producer) note_kept(storage.first, made_again);
  const std::span<const OperatorId> readers = flat_.graph.readers(TensorId(tensor));
  std::size_t here = 0;
  auto at = readers.begin();
  for (const PriceSegment& segment : stage) {
    at = readers.end() - at > 8 ? std::lower_bound(at, readers.end(), OperatorId(segment.first)) : at;
    for (; at != readers.end() && at->index() <= segment.last; ++at) {
      if (at->index() < segment.first) continue;
      const std::uint32_t op = narrow(at->index());
      ++here;
      last = op;
      if (flat_.operators[op].has_backward) {
        last_gradient = op;
        gradient = gradient || !flat_.operators[op].duplicable;
      }
      note_kept(op, segment.again);
      if (segment.again && !made_again) kept = for_weights = true;
    }
  }
  const std::int64_t bytes = bytes_of(tensor), for_input = for_weights ? 0 : bytes;
  if (input) {
    if (here == 0) return;
    if (kept) {
      sink.sums.saved += bytes;
      sink.sums.saved_for_input += for_input;
    } else {
      sink.forward.push_back({stage.front().first, last, bytes});
    }
    return;
  }
  if (!producer) {
    if (here > 0 && !storage.duplicable) {
      sink.received.push_back(
          {TensorId(tensor), kept, storage.requires_grad && gradient, kept && !for_weights});
    }
    return;
  }
  if (kept_again && !kept) {
    sink.sums.recomputed += bytes;
    sink.sums.recomputed_for_input += for_input;
  }
  if (!storage.duplicable && here < readers.size()) {
    sink.outputs.push_back({TensorId(tensor), Bytes(bytes), kept, kept && !for_weights});
    return;
  }
  if (kept) {
    sink.sums.saved += bytes;
    sink.sums.saved_for_input += for_input;
  } else {
    sink.forward.push_back({storage.first, last, bytes});
  }
  if (storage.requires_grad) sink.backward.push_back({storage.first, last_gradient, bytes});
}

}  // namespace espalier::internal
