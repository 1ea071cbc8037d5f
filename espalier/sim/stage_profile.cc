#include "espalier/sim/stage_profile.h"

#include <algorithm>

#include "espalier/base/check.h"

namespace espalier::internal {

ProfileTables::ProfileTables(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                             const Training& training)
    : graph_(graph),
      kinds_(cluster.kinds().size()),
      micro_batches_(training.micro_batches),
      storages_(graph.storage_count()) {
  for (const Operator& op : graph.operators()) {
    FlatOperator flat;
    flat.inputs = static_cast<std::uint32_t>(input_.size());
    flat.outputs = static_cast<std::uint32_t>(output_.size());
    flat.duplicable = op.duplicable;
    for (const TensorId id : op.inputs) input_.push_back(static_cast<std::uint32_t>(id.index()));
    for (const TensorId id : op.outputs) {
      output_.push_back(static_cast<std::uint32_t>(id.index()));
      flat.has_backward |= graph.tensor(id).requires_grad;
    }
    for (auto at = op.inputs.begin(); at != op.inputs.end(); ++at) {
      const auto parameter = graph.tensor(*at).parameter;
      if (parameter && graph.parameter(*parameter).trainable && std::find(op.inputs.begin(), at, *at) == at) {
        flat.fresh_gradients += graph.parameter(*parameter).bytes();
      }
    }
    operators_.push_back(flat);
  }
  operators_.push_back({static_cast<std::uint32_t>(input_.size()), static_cast<std::uint32_t>(output_.size()),
                        false, false, Bytes()});

  std::vector<std::uint32_t> reads(graph.parameters().size(), 0);
  for (std::size_t t = 0; t < graph.tensors().size(); ++t) {
    const Tensor& tensor = graph.tensors()[t];
    FlatTensor flat;
    flat.role = tensor.role;
    flat.requires_grad = tensor.requires_grad;
    flat.storage = static_cast<std::uint32_t>(tensor.storage.index());
    if (tensor.producer) flat.producer = static_cast<std::uint32_t>(tensor.producer->index());
    const std::span<const OperatorId> readers = graph.readers(TensorId(t));
    if (!readers.empty()) flat.last_reader = static_cast<std::uint32_t>(readers.back().index());
    if (tensor.parameter) {
      flat.parameter = static_cast<std::uint32_t>(tensor.parameter->index());
      flat.trainable = graph.parameter(*tensor.parameter).trainable;
      reads[flat.parameter] += static_cast<std::uint32_t>(readers.size());
    }
    tensors_.push_back(flat);
  }
  for (const std::uint32_t count : reads) shared_parameter_.push_back(count > 1);

  for (const BatchSize micro_batch : micro_batches_) {
    for (const Tensor& tensor : graph.tensors()) tensor_bytes_.push_back(tensor.bytes(micro_batch));
    const OperatorCosts resolved(graph, cluster, costs, micro_batch);
    for (std::size_t kind = 0; kind < kinds_; ++kind) {
      Costs flat;
      flat.before.push_back({});
      flat.saved_begin.push_back(0);
      for (std::size_t i = 0; i < graph.operators().size(); ++i) {
        const Operator& op = graph.operators()[i];
        const OperatorCost& cost = resolved.of(OperatorId(i), KindId(kind));
        Sums sums = flat.before.back();
        sums.forward += cost.forward;
        sums.input_gradient += cost.input_gradient;
        sums.weight_gradient += cost.weight_gradient;
        flat.before.push_back(sums);
        flat.private_bytes.push_back(cost.private_bytes);
        flat.between_halves.push_back(cost.between_halves);
        flat.workspace.push_back(cost.workspace);
        for (const SavedTensor& saved : cost.saved) {
          const auto& tensors = saved.side == SavedTensor::Side::kInput ? op.inputs : op.outputs;
          if (saved.index >= tensors.size()) {
            throw InputError("the cost of '" + op.op_class + "' saves tensor " + std::to_string(saved.index) +
                             " of its " + (saved.side == SavedTensor::Side::kInput ? "inputs" : "outputs") +
                             ", but operator '" + op.name + "' has " + std::to_string(tensors.size()));
          }
          flat.saved.push_back(static_cast<std::uint32_t>(tensors[saved.index].index()));
        }
        flat.saved_begin.push_back(static_cast<std::uint32_t>(flat.saved.size()));
      }
      costs_.push_back(std::move(flat));
    }
  }
}

std::optional<std::size_t> ProfileTables::micro_batch_index(BatchSize size) const {
  for (std::size_t i = 0; i < micro_batches_.size(); ++i) {
    if (micro_batches_[i] == size) return i;
  }
  return std::nullopt;
}

// One pass over a stage's operators; see stage_model's comment for what is counted where.
struct ProfileTables::Walk {
  using Local = Scratch::Local;

  const ProfileTables& tables;
  std::span<const OperatorId> stage;
  std::size_t micro_batch;
  std::span<const std::size_t> kinds;
  Scratch& scratch;
  bool is_run = false;

  Local& local(std::uint32_t tensor) { return scratch.locals[scratch.local_of[tensor]]; }

  void begin(std::span<const OperatorId> recompute) {
    if (scratch.local_of.empty()) {
      scratch.local_of.assign(tables.tensors_.size(), kNone);
      scratch.place_of.assign(tables.tensors_.size(), kNone);
      scratch.state_of.assign(tables.storages_, kNone);
      scratch.inside.assign(tables.operators(), false);
    }
    scratch.locals.clear();
    scratch.touched.clear();
    scratch.touched_states.clear();
    scratch.read_with_gradient.clear();
    scratch.again.assign(stage.size(), false);
    std::size_t at = 0;
    for (const OperatorId op : recompute) {
      while (at < stage.size() && stage[at] < op) ++at;
      ESP_CHECK(at < stage.size() && stage[at] == op, op);
      scratch.again[at] = true;
    }
    is_run = stage.back().index() - stage.front().index() + 1 == stage.size();
    if (!is_run) {
      for (const OperatorId op : stage) scratch.inside[op.index()] = true;
    }
  }

  void end() {
    for (const std::uint32_t tensor : scratch.touched) scratch.local_of[tensor] = kNone;
    for (const std::uint32_t storage : scratch.touched_states) scratch.state_of[storage] = kNone;
    if (!is_run) {
      for (const OperatorId op : stage) scratch.inside[op.index()] = false;
    }
  }

  void set_local(std::uint32_t tensor, std::uint32_t index) {
    scratch.local_of[tensor] = index;
    scratch.place_of[tensor] = static_cast<std::uint32_t>(scratch.touched.size());
    scratch.touched.push_back(tensor);
    scratch.read_with_gradient.push_back(0);
  }

  std::uint32_t new_local(std::uint32_t tensor, Local::Kind kind, std::uint32_t position) {
    Local storage;
    storage.kind = kind;
    storage.bytes = tables.tensor_bytes(micro_batch, tensor);
    storage.producer = storage.last_use = position;
    storage.parameter = tables.tensors_[tensor].parameter;
    scratch.locals.push_back(storage);
    return static_cast<std::uint32_t>(scratch.locals.size() - 1);
  }

  void read(std::uint32_t tensor, std::uint32_t position) {
    if (scratch.local_of[tensor] == kNone) {
      const FlatTensor& flat = tables.tensors_[tensor];
      if (flat.role == TensorRole::kActivation) {
        set_local(tensor, new_local(tensor, Local::Kind::kReceived, position));
      } else {
        std::uint32_t& index = scratch.state_of[flat.storage];
        if (index == kNone) {
          index = new_local(tensor,
                            flat.role == TensorRole::kInput ? Local::Kind::kInput : Local::Kind::kState, 0);
          scratch.touched_states.push_back(flat.storage);
        }
        set_local(tensor, index);
      }
    }
    local(tensor).last_use = position;
  }

  void produce(const FlatOperator& op, const FlatOperator& next, std::uint32_t tensor,
               std::uint32_t position) {
    const FlatTensor& flat = tables.tensors_[tensor];
    const auto shared_with = [&](const std::vector<std::uint32_t>& list, std::uint32_t from,
                                 std::uint32_t to) {
      for (std::uint32_t i = from; i < to; ++i) {
        if (tables.tensors_[list[i]].storage == flat.storage && scratch.local_of[list[i]] != kNone)
          return list[i];
      }
      return kNone;
    };
    std::uint32_t other = shared_with(tables.input_, op.inputs, next.inputs);
    if (other == kNone) other = shared_with(tables.output_, op.outputs, next.outputs);
    if (other == kNone) {
      set_local(tensor, new_local(tensor, Local::Kind::kOwn, position));
      local(tensor).produced_again = scratch.again[position];
      local(tensor).gradient = flat.requires_grad;
      return;
    }
    set_local(tensor, scratch.local_of[other]);
    local(tensor).last_use = position;
    if (flat.requires_grad) local(tensor).gradient = true;
  }

  void walk() {
    for (std::uint32_t i = 0; i < stage.size(); ++i) {
      const FlatOperator& op = tables.operators_[stage[i].index()];
      const FlatOperator& next = tables.operators_[stage[i].index() + 1];
      for (std::uint32_t at = op.inputs; at < next.inputs; ++at) {
        const std::uint32_t tensor = tables.input_[at];
        read(tensor, i);
        if (op.has_backward) {
          local(tensor).last_gradient = i;
          if (!op.duplicable) scratch.read_with_gradient[scratch.place_of[tensor]] = 1;
        }
      }
      for (std::uint32_t at = op.outputs; at < next.outputs; ++at) produce(op, next, tables.output_[at], i);
    }
  }

  void mark_kept() {
    for (std::uint32_t i = 0; i < stage.size(); ++i) {
      const std::size_t id = stage[i].index();
      for (const std::size_t kind : kinds) {
        const Costs& costs = tables.costs(micro_batch, kind);
        for (std::uint32_t at = costs.saved_begin[id]; at < costs.saved_begin[id + 1]; ++at) {
          Local& storage = local(costs.saved[at]);
          (scratch.again[i] && storage.produced_again ? storage.kept_again : storage.kept) = true;
        }
      }
      if (!scratch.again[i]) continue;
      for (std::uint32_t at = tables.operators_[id].inputs; at < tables.operators_[id + 1].inputs; ++at) {
        if (!local(tables.input_[at]).produced_again) local(tables.input_[at]).kept = true;
      }
    }
  }

  bool read_outside(std::uint32_t tensor) const {
    const FlatTensor& flat = tables.tensors_[tensor];
    if (is_run) return flat.last_reader > stage.back().index();
    const std::span<const OperatorId> readers = tables.graph_.readers(TensorId(tensor));
    return std::any_of(readers.begin(), readers.end(),
                       [&](OperatorId op) { return !scratch.inside[op.index()]; });
  }

  void crossings(StageProfile& result) {
    for (std::size_t place = 0; place < scratch.touched.size(); ++place) {
      const std::uint32_t tensor = scratch.touched[place];
      const FlatTensor& flat = tables.tensors_[tensor];
      if (flat.producer == kNone || tables.operators_[flat.producer].duplicable) continue;
      const bool inside =
          is_run ? flat.producer >= stage.front().index() && flat.producer <= stage.back().index()
                 : static_cast<bool>(scratch.inside[flat.producer]);
      Local& storage = local(tensor);
      if (!inside) {
        result.received.push_back(
            {tensor, storage.kept, flat.requires_grad && scratch.read_with_gradient[place] != 0});
      } else if (read_outside(tensor)) {
        result.outputs.push_back({tensor, output_bytes(tensor, storage), storage.kept});
      }
    }
    std::sort(result.outputs.begin(), result.outputs.end(),
              [](const auto& a, const auto& b) { return a.tensor < b.tensor; });
  }

  // Of several crossing tensors in one storage the first counts it.
  Bytes output_bytes(std::uint32_t tensor, Local& storage) const {
    if (storage.crosses || storage.kind == Local::Kind::kState) return Bytes();
    storage.crosses = true;
    if (storage.kind != Local::Kind::kReceived) return storage.bytes;
    return storage.kept ? Bytes() : tables.tensor_bytes(micro_batch, tensor);
  }

  template <class Table>
  Bytes largest(Table table, std::size_t op) const {
    Bytes most;
    for (const std::size_t kind : kinds) most = std::max(most, (tables.costs(micro_batch, kind).*table)[op]);
    return most;
  }

  void memory(StageProfile& result) {
    StageMemory& memory = result.memory;
    const std::size_t size = stage.size();
    for (auto* room : {&scratch.forward, &scratch.backward}) room->assign(size + 1, Bytes());
    for (auto* room : {&scratch.forward_own, &scratch.backward_own}) room->assign(size, Bytes());
    for (std::size_t i = 0; i < size; ++i) {
      const std::size_t id = stage[i].index();
      (scratch.again[i] ? memory.recomputed : memory.saved) += largest(&Costs::private_bytes, id);
      memory.between_halves += largest(&Costs::between_halves, id);
      const Bytes workspace = largest(&Costs::workspace, id);
      scratch.forward_own[i] = workspace;
      if (tables.operators_[id].has_backward) {
        scratch.backward_own[i] = workspace + tables.operators_[id].fresh_gradients;
      }
    }
    for (const Local& storage : scratch.locals) count(storage, result);
    memory.gradients = memory.parameters;
    memory.forward_workspace = peak(scratch.forward, scratch.forward_own);
    memory.backward_workspace = peak(scratch.backward, scratch.backward_own);
  }

  void count(const Local& storage, StageProfile& result) {
    StageMemory& memory = result.memory;
    if (storage.kind == Local::Kind::kState) {
      const bool trainable =
          storage.parameter != kNone && tables.graph_.parameter(ParameterId(storage.parameter)).trainable;
      (trainable ? memory.parameters : memory.buffers) += storage.bytes;
      if (trainable && tables.shared_parameter_[storage.parameter]) {
        result.shared_parameters.push_back(storage.parameter);
      }
      return;
    }
    const bool own = storage.kind != Local::Kind::kReceived;
    if (own && storage.kept && !storage.crosses) memory.saved += storage.bytes;
    if (storage.kept_again && !storage.kept) memory.recomputed += storage.bytes;
    if (own && !storage.kept && !storage.crosses) {
      scratch.forward[storage.producer] += storage.bytes;
      scratch.forward[storage.last_use + 1] -= storage.bytes;
    }
    if (storage.kind == Local::Kind::kOwn && storage.gradient && !storage.crosses) {
      scratch.backward[storage.producer] += storage.bytes;
      scratch.backward[std::max(storage.producer, storage.last_gradient) + 1] -= storage.bytes;
    }
  }

  static Bytes peak(const std::vector<Bytes>& change, const std::vector<Bytes>& own) {
    Bytes sum, best;
    for (std::size_t i = 0; i < own.size(); ++i) best = std::max(best, (sum += change[i]) + own[i]);
    return best;
  }
};

void ProfileTables::profile(std::span<const OperatorId> stage, std::span<const OperatorId> recompute,
                            std::size_t micro_batch, std::span<const std::size_t> kinds, Scratch& scratch,
                            StageProfile& result) const {
  result.memory = {};
  result.outputs.clear();
  result.received.clear();
  result.shared_parameters.clear();
  Walk walk{*this, stage, micro_batch, kinds, scratch};
  walk.begin(recompute);
  walk.walk();
  walk.mark_kept();
  walk.crossings(result);
  walk.memory(result);
  walk.end();
}

}  // namespace espalier::internal
