// From a plan on operators to stages with costs (docs/semantics.md §3, §4).
//
// Each stage is walked once. Its tensors fall into *local storages*: what one process that runs this stage
// would allocate. An output is a new local storage unless it shares memory with an input of its operator; a
// tensor from another stage is a new one too, because it arrives in a buffer of its own; parameters,
// constants and user inputs are one per storage of the graph. Each local storage is then counted in exactly
// one place:
//
//   parameter, constant            StageMemory::parameters or buffers
//   received                       its Crossing's reader: while in its slot, and until B if kept
//   own, crosses to another stage  its Crossing: until its sends end, and until B if kept
//   kept for backward              StageMemory::saved
//   kept only by operators that are recomputed, and produced by them      StageMemory::recomputed
//   anything else                  the forward workspace, from its producer to its last reader
//
// Recomputing a set R of operators keeps what R reads from outside R, and drops what R itself produced.

#include "espalier/plan/staged_model.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "espalier/base/check.h"
#include "espalier/cost/training_times.h"

namespace espalier {
namespace {

constexpr std::uint32_t kNone = 0xffffffff;

struct LocalStorage {
  enum class Kind : std::uint8_t { kOwn, kReceived, kInput, kState } kind = Kind::kOwn;
  Bytes bytes;
  std::uint32_t producer = 0;            // position in the stage (kOwn)
  std::uint32_t last_use = 0;            // position of the last operator that touches it
  std::uint32_t last_gradient = 0;       // position of the last reader that has a backward
  std::optional<ParameterId> parameter;  // kState
  StorageId state = {};                  // kState
  bool produced_again = false;           // its producer is recomputed
  bool kept = false;                     // from F to the end of B
  bool kept_again = false;               // by operators that are recomputed
  bool for_weights = false;              // the weight half of one that keeps it needs it
  bool crosses = false;
  bool gradient = false;
  bool updates = false;  // in a training graph: an update reads it, so it counts as the gradient

  bool counts_as_saved() const { return (kind == Kind::kOwn || kind == Kind::kInput) && kept && !crosses; }
  bool transient() const {
    return (kind == Kind::kOwn || kind == Kind::kInput) && !kept && !crosses && !updates;
  }
};

// The largest sum of intervals [first, last] that are alive at once, plus what each position needs itself.
class Peak {
 public:
  explicit Peak(std::size_t positions) : positions_(positions + 1) {}
  void alive(std::uint32_t first, std::uint32_t last, Bytes bytes) {
    positions_[first].change += bytes;
    positions_[last + 1].change -= bytes;
  }
  void need(std::uint32_t position, Bytes bytes) { positions_[position].own += bytes; }
  Bytes largest() const {
    Bytes sum, best;
    for (const Position& position : positions_)
      best = std::max(best, (sum += position.change) + position.own);
    return best;
  }

 private:
  struct Position {
    Bytes change, own;
  };
  std::vector<Position> positions_;  // one behind the last, where all has ended
};

Bytes share_of(Bytes bytes, std::size_t devices) {
  const auto n = static_cast<std::int64_t>(devices);
  return Bytes((bytes.count() + n - 1) / n);
}

class Stager {
 public:
  Stager(const Graph& graph, const Cluster& cluster, const CostTable& costs, const Training& training,
         const PipelinePlan& plan, StateCopies copies)
      : graph_(graph), cluster_(cluster), table_(costs), training_(training), plan_(plan), copies_(copies) {}

  StagedModel run() {
    model_.orders = plan_.orders;
    if (plan_.orders.lists()) held_ = in_flight_limits(plan_);
    model_.tokens = plan_.tokens;
    find_owners();
    find_hosts();
    find_crossings();
    local_of_.assign(graph_.tensors().size(), kNone);
    state_of_.assign(graph_.storage_count(), kNone);
    holders_.resize(graph_.parameters().size());
    for (std::size_t x = 0; x < plan_.stages.size(); ++x) add_stage(StageId(x));
    add_tokens();
    add_ties();
    return std::move(model_);
  }

 private:
  const Stage& stage(StageId id) const { return plan_.stages[id.index()]; }

  void find_owners() {
    owner_.resize(graph_.operators().size());
    for (std::size_t x = 0; x < plan_.stages.size(); ++x) {
      for (const OperatorId op : plan_.stages[x].operators) owner_[op.index()] = StageId(x);
    }
  }

  // How many devices of each group host a stage: more than one, and they slow each other down.
  void find_hosts() {
    std::vector<bool> hosting(cluster_.devices().size());
    for (const Stage& s : plan_.stages) {
      for (const Replica& replica : s.replicas) {
        for (const DeviceId device : replica.devices) hosting[device.index()] = true;
      }
    }
    busy_in_group_.assign(cluster_.groups().size(), 0);
    for (std::size_t d = 0; d < hosting.size(); ++d) {
      if (hosting[d]) ++busy_in_group_[cluster_.devices()[d].group.index()];
    }
  }

  // Every (tensor, reading stage) pair whose producer stands elsewhere; figures are filled in by add_stage.
  void find_crossings() {
    struct Pair {
      StageId from;
      TensorId tensor;
      StageId reader;
      auto operator<=>(const Pair&) const = default;
    };
    std::vector<Pair> pairs;
    std::vector<std::uint32_t> seen_by(graph_.tensors().size(), kNone);
    for (std::size_t y = 0; y < plan_.stages.size(); ++y) {
      for (const OperatorId op : plan_.stages[y].operators) {
        for (const TensorId input : graph_.op(op).inputs) {
          const auto producer = graph_.tensor(input).producer;
          if (!producer || graph_.op(*producer).duplicable) continue;
          const StageId from = owner_[producer->index()];
          if (from.index() == y || seen_by[input.index()] == y) continue;
          seen_by[input.index()] = static_cast<std::uint32_t>(y);
          pairs.push_back({from, input, StageId(y)});
        }
      }
    }
    std::sort(pairs.begin(), pairs.end());
    crossing_of_.assign(graph_.tensors().size(), kNone);
    for (const Pair& pair : pairs) {
      std::uint32_t& index = crossing_of_[pair.tensor.index()];
      if (index == kNone) {
        index = static_cast<std::uint32_t>(model_.crossings.size());
        Crossing crossing;
        crossing.tensor = graph_.tensor(pair.tensor).name;
        crossing.from = pair.from;
        crossing.returns = false;
        model_.crossings.push_back(std::move(crossing));
      }
      const BatchSize piece = std::min(stage(pair.from).micro_batch, stage(pair.reader).micro_batch);
      Crossing::Reader reader;
      reader.stage = pair.reader;
      reader.bytes = graph_.tensor(pair.tensor).bytes(piece);
      model_.crossings[index].readers.push_back(reader);
    }
  }

  void add_stage(StageId id) {
    const Stage& s = stage(id);
    StagedStage staged;
    staged.name = s.name;
    staged.after = s.after;
    staged.micro_batches = plan_.micro_batches(id);
    staged.in_flight = held_.empty() ? s.in_flight : held_[id.index()];
    staged.slots = s.slots;

    collect_kinds(s);
    recomputed_.assign(s.operators.size(), false);
    for (const OperatorId op : s.recompute) {
      const auto place = std::lower_bound(s.operators.begin(), s.operators.end(), op);
      ESP_CHECK(place != s.operators.end() && *place == op, s.name, graph_.op(op).name);
      recomputed_[static_cast<std::size_t>(place - s.operators.begin())] = true;
    }
    find_local_storages(s);
    mark_kept(s);
    fill_crossings(id);
    add_memory(s, staged.memory);
    for (const Replica& replica : s.replicas) {
      staged.replicas.push_back({replica.devices, replica.micro_batches, times(s, replica, staged.memory)});
    }
    if (s.replicas.size() > 1) staged.reduced = staged.memory.gradients;
    model_.stages.push_back(std::move(staged));
    for (const TensorId tensor : touched_) local_of_[tensor.index()] = kNone;
    for (const StorageId storage : touched_states_) state_of_[storage.index()] = kNone;
  }

  // ---- costs of the stage's operators on the kinds of its devices ----

  void collect_kinds(const Stage& s) {
    group_size_ = s.replicas[0].devices.size();
    kinds_.clear();
    for (const Replica& replica : s.replicas) {
      for (const DeviceId device : replica.devices) kinds_.push_back(cluster_.device(device).kind);
    }
    std::sort(kinds_.begin(), kinds_.end());
    kinds_.erase(std::unique(kinds_.begin(), kinds_.end()), kinds_.end());
    cost_of_kind_.assign(cluster_.kinds().size(), nullptr);
    for (const KindId kind : kinds_) {
      const std::tuple key(s.micro_batch, group_size_, kind);
      auto place = costs_.find(key);
      if (place == costs_.end()) {
        const KindCosts fresh(graph_, cluster_.kind(kind), table_, s.micro_batch, variant());
        place = costs_.emplace(key, fresh).first;
      }
      cost_of_kind_[kind.index()] = &place->second;
    }
  }
  Variant variant() const {
    Variant variant;
    variant.tensor_parallel = static_cast<std::uint32_t>(group_size_);
    return variant;
  }
  const OperatorCost& cost_of(OperatorId op, KindId kind) const {
    const OperatorCost* cost = cost_of_kind_[kind.index()]->of(op);
    if (cost == nullptr) refuse_missing_cell(graph_.op(op), cluster_.kind(kind), variant());
    return *cost;
  }

  // Bytes that any kind needs: replicas of one stage hold the same.
  Bytes largest(OperatorId op, Bytes OperatorCost::*field) const {
    Bytes most;
    for (const KindId kind : kinds_) most = std::max(most, cost_of(op, kind).*field);
    return most;
  }

  // Of the private bytes: what any kind keeps for the weight half.
  Bytes for_weights(OperatorId op) const {
    Bytes most;
    for (const KindId kind : kinds_) {
      const OperatorCost& cost = cost_of(op, kind);
      most = std::max(most, cost.private_bytes - cost.private_for_input);
    }
    return most;
  }

  bool has_backward(const Operator& op) const {
    return std::any_of(op.outputs.begin(), op.outputs.end(),
                       [&](TensorId id) { return graph_.tensor(id).requires_grad; });
  }

  // ---- local storages ----

  LocalStorage& local(TensorId tensor) { return locals_[local_of_[tensor.index()]]; }

  void set_local(TensorId tensor, std::uint32_t index) {
    local_of_[tensor.index()] = index;
    touched_.push_back(tensor);
  }

  std::uint32_t new_local(TensorId tensor, LocalStorage::Kind kind, std::uint32_t position) {
    LocalStorage storage;
    storage.kind = kind;
    storage.bytes = graph_.tensor(tensor).bytes(micro_batch_);
    storage.producer = storage.last_use = position;
    storage.parameter = graph_.tensor(tensor).parameter;
    storage.state = graph_.tensor(tensor).storage;
    locals_.push_back(storage);
    return static_cast<std::uint32_t>(locals_.size() - 1);
  }

  void read(TensorId id, std::uint32_t position) {
    const Tensor& tensor = graph_.tensor(id);
    if (local_of_[id.index()] == kNone) {
      if (tensor.role == TensorRole::kActivation) {
        set_local(id, new_local(id, LocalStorage::Kind::kReceived, position));
      } else {
        std::uint32_t& index = state_of_[tensor.storage.index()];
        if (index == kNone) {
          const bool input = tensor.role == TensorRole::kInput;
          index = new_local(id, input ? LocalStorage::Kind::kInput : LocalStorage::Kind::kState, 0);
          touched_states_.push_back(tensor.storage);
        }
        set_local(id, index);
      }
    }
    local(id).last_use = position;
  }

  void produce(const Operator& op, TensorId id, std::uint32_t position) {
    const StorageId storage = graph_.tensor(id).storage;
    const auto shares = [&](TensorId other) {
      return graph_.tensor(other).storage == storage && local_of_[other.index()] != kNone;
    };
    auto other = std::find_if(op.inputs.begin(), op.inputs.end(), shares);
    if (other == op.inputs.end()) {
      other = std::find_if(op.outputs.begin(), op.outputs.end(), shares);
      if (other == op.outputs.end()) {
        set_local(id, new_local(id, LocalStorage::Kind::kOwn, position));
        local(id).produced_again = recomputed_[position];
        local(id).gradient = graph_.tensor(id).requires_grad;
        return;
      }
    }
    set_local(id, local_of_[other->index()]);
    local(id).last_use = position;
    if (graph_.tensor(id).requires_grad) local(id).gradient = true;
  }

  void find_local_storages(const Stage& s) {
    locals_.clear();
    touched_.clear();
    touched_states_.clear();
    micro_batch_ = s.micro_batch;
    for (std::uint32_t i = 0; i < s.operators.size(); ++i) {
      const Operator& op = graph_.op(s.operators[i]);
      const bool backward = has_backward(op);
      for (const TensorId input : op.inputs) {
        read(input, i);
        if (backward) local(input).last_gradient = i;
        if (op.role == OperatorRole::kUpdate) local(input).updates = true;
      }
      for (const TensorId output : op.outputs) produce(op, output, i);
    }
  }

  // The tensor that a cost cell names. Cells come from files, so the number may be wrong.
  TensorId saved_tensor(const Operator& op, const SavedTensor& saved) const {
    const bool input = saved.side == SavedTensor::Side::kInput;
    const std::vector<TensorId>& tensors = input ? op.inputs : op.outputs;
    if (saved.index < tensors.size()) return tensors[saved.index];
    throw InputError("the cost of '" + op.op_class + "' saves " + (input ? "input " : "output ") +
                     std::to_string(saved.index) + ", but operator '" + op.name + "' has " +
                     std::to_string(tensors.size()));
  }

  void mark_kept(const Stage& s) {
    for (std::size_t i = 0; i < s.operators.size(); ++i) {
      const Operator& op = graph_.op(s.operators[i]);
      for (const KindId kind : kinds_) {
        for (const SavedTensor& saved : cost_of(s.operators[i], kind).saved) {
          LocalStorage& storage = local(saved_tensor(op, saved));
          storage.for_weights |= !saved.for_input_only;
          (recomputed_[i] && storage.produced_again ? storage.kept_again : storage.kept) = true;
        }
      }
      if (!recomputed_[i]) continue;
      for (const TensorId input : op.inputs) {
        if (!local(input).produced_again) local(input).kept = local(input).for_weights = true;
      }
    }
  }

  // ---- crossings ----

  void fill_crossings(StageId id) {
    for (const TensorId tensor : touched_) {
      const std::uint32_t index = crossing_of_[tensor.index()];
      if (index == kNone) continue;
      Crossing& crossing = model_.crossings[index];
      if (crossing.from == id) {
        fill_output(tensor, crossing);
      } else {
        const auto reader = std::find_if(crossing.readers.begin(), crossing.readers.end(),
                                         [&](const Crossing::Reader& r) { return r.stage == id; });
        ESP_CHECK(reader != crossing.readers.end(), crossing.tensor);
        reader->saved = local(tensor).kept;
        reader->for_input_only = local(tensor).kept && !local(tensor).for_weights;
        if (graph_.tensor(tensor).requires_grad && read_with_gradient(id, tensor)) {
          reader->gradient = reader->bytes;
          crossing.returns = true;
        }
      }
    }
  }

  bool read_with_gradient(StageId id, TensorId tensor) const {
    const std::span<const OperatorId> readers = graph_.readers(tensor);
    return std::any_of(readers.begin(), readers.end(), [&](OperatorId op) {
      return !graph_.op(op).duplicable && owner_[op.index()] == id && has_backward(graph_.op(op));
    });
  }

  // The producer's side. Of several crossing tensors in one storage the first counts it.
  void fill_output(TensorId tensor, Crossing& crossing) {
    LocalStorage& storage = local(tensor);
    crossing.saved_by_producer = storage.kept;
    crossing.for_input_only = storage.kept && !storage.for_weights;
    if (storage.crosses) return;
    switch (storage.kind) {
      case LocalStorage::Kind::kOwn:
      case LocalStorage::Kind::kInput:
        crossing.output = storage.bytes;
        break;
      case LocalStorage::Kind::kReceived:  // a view of what arrived; counted there if it stays
        if (!storage.kept) crossing.output = graph_.tensor(tensor).bytes(micro_batch_);
        break;
      case LocalStorage::Kind::kState:
        return;
    }
    storage.crosses = true;
  }

  // ---- memory and time ----

  void add_memory(const Stage& s, StageMemory& memory) {
    Peak forward(s.operators.size()), backward(s.operators.size());
    for (std::uint32_t i = 0; i < s.operators.size(); ++i) {
      const OperatorId op = s.operators[i];
      const Bytes kept = largest(op, &OperatorCost::private_bytes);
      (recomputed_[i] ? memory.recomputed : memory.saved) += kept;
      (recomputed_[i] ? memory.recomputed_for_input : memory.saved_for_input) += kept - for_weights(op);
      memory.between_halves += largest(op, &OperatorCost::between_halves);
      memory.update_workspace = std::max(memory.update_workspace, largest_update(graph_.op(op)));
      forward.need(i, largest(op, &OperatorCost::workspace));
      if (!has_backward(graph_.op(op))) continue;
      backward.need(i, largest(op, &OperatorCost::workspace) + fresh_gradients(graph_.op(op)));
    }
    for (const LocalStorage& storage : locals_) {
      if (storage.kind == LocalStorage::Kind::kState) {
        if (!takes_copy(s, storage.state)) continue;
        const bool trainable = storage.parameter && graph_.parameter(*storage.parameter).trainable;
        (trainable ? memory.parameters : memory.buffers) += share_of(storage.bytes, group_size_);
        if (trainable) holders_[storage.parameter->index()].push_back(StageId(model_.stages.size()));
        continue;
      }
      if (storage.counts_as_saved()) {
        memory.saved += storage.bytes;
        if (!storage.for_weights) memory.saved_for_input += storage.bytes;
      }
      if (storage.kept_again && !storage.kept) {
        memory.recomputed += storage.bytes;
        if (!storage.for_weights) memory.recomputed_for_input += storage.bytes;
      }
      if (storage.transient()) forward.alive(storage.producer, storage.last_use, storage.bytes);
      if (storage.kind == LocalStorage::Kind::kOwn && storage.gradient && !storage.crosses) {
        backward.alive(storage.producer, std::max(storage.producer, storage.last_gradient), storage.bytes);
      }
    }
    memory.gradients = memory.parameters;
    memory.optimizer_state = optimizer_state(training_.optimizer, memory.parameters);
    memory.forward_workspace = forward.largest();
    memory.backward_workspace = backward.largest();
  }

  // The most that an update of a parameter that the operator reads needs, on any kind.
  Bytes largest_update(const Operator& op) const {
    Bytes most;
    for (const TensorId input : op.inputs) {
      const auto parameter = graph_.tensor(input).parameter;
      if (!parameter || !graph_.parameter(*parameter).trainable) continue;
      for (const KindId kind : kinds_) {
        const Bytes bytes =
            update_workspace(training_.optimizer, graph_.parameter(*parameter), cluster_.kind(kind));
        most = std::max(most, share_of(bytes, group_size_));
      }
    }
    return most;
  }

  // Whether the stage holds a copy of its own. The stages of a device that share one have one replica each.
  bool takes_copy(const Stage& s, StorageId state) {
    if (copies_ == StateCopies::kOfEachStage) return true;
    return on_device_.emplace(s.replicas[0].devices[0], state).second;
  }

  // A parameter's gradient of one micro-batch exists beside the sum it is added to.
  Bytes fresh_gradients(const Operator& op) const {
    Bytes sum;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const auto parameter = graph_.tensor(op.inputs[i]).parameter;
      if (!parameter || !graph_.parameter(*parameter).trainable) continue;
      const auto end = op.inputs.begin() + static_cast<std::ptrdiff_t>(i);
      if (std::find(op.inputs.begin(), end, op.inputs[i]) == end) {
        sum += share_of(graph_.parameter(*parameter).bytes(), group_size_);
      }
    }
    return sum;
  }

  StageTimes times(const Stage& s, const Replica& replica, const StageMemory& memory) const {
    StageTimes slowest;
    for (const DeviceId device : replica.devices) {
      const StageTimes own = times_on(s, replica, device, memory);
      for (const auto field :
           {&StageTimes::forward, &StageTimes::input_gradient, &StageTimes::weight_gradient,
            &StageTimes::recompute, &StageTimes::update, &StageTimes::overhead}) {
        slowest.*field = std::max(slowest.*field, own.*field);
      }
    }
    return slowest;
  }

  StageTimes times_on(const Stage& s, const Replica& replica, DeviceId device,
                      const StageMemory& memory) const {
    const KindId kind = cluster_.device(device).kind;
    const DeviceKind& description = cluster_.kind(kind);
    const KindOverhead overhead = table_.overhead(description.name);
    StageTimes sum;
    for (std::size_t i = 0; i < s.operators.size(); ++i) {
      const OperatorCost& cost = cost_of(s.operators[i], kind);
      sum.forward += cost.forward;
      sum.input_gradient += cost.input_gradient;
      sum.weight_gradient += cost.weight_gradient;
      if (recomputed_[i]) sum.recompute += cost.forward;
    }
    if (busy_in_group_[cluster_.device(device).group.index()] > 1) {
      for (const auto field : {&StageTimes::forward, &StageTimes::input_gradient,
                               &StageTimes::weight_gradient, &StageTimes::recompute}) {
        sum.*field += Duration(((sum.*field).count() * overhead.neighbour_per_mille + 500) / 1000);
      }
    }
    if (replica.devices.size() > 1) {
      for (std::size_t i = 0; i < s.operators.size(); ++i) {
        const OperatorCost& cost = cost_of(s.operators[i], kind);
        const Duration forward = reduce_time(cluster_, replica.devices, cost.reduced_forward);
        sum.forward += forward;
        sum.input_gradient += reduce_time(cluster_, replica.devices, cost.reduced_backward);
        if (recomputed_[i]) sum.recompute += forward;
      }
    }
    const Duration per_action = at_speed(overhead.per_action, description);
    sum.forward += per_action;
    sum.overhead = per_action;
    if (!s.recompute.empty()) sum.recompute += per_action;
    sum.update = at_speed(update_time(overhead, training_.optimizer.kind, memory.parameters), description);
    return sum;
  }

  // ---- order without data, tied parameters ----

  void add_tokens() {
    if (plan_.tokens == TokenRule::kNone) return;
    std::vector<Crossing> tokens(plan_.stages.size());
    std::vector<std::vector<StageId>> feeds(plan_.stages.size());  // by reader: stages that send it a tensor
    for (const Crossing& crossing : model_.crossings) {
      for (const Crossing::Reader& reader : crossing.readers) {
        std::vector<StageId>& from = feeds[reader.stage.index()];
        if (from.empty() || from.back() != crossing.from) from.push_back(crossing.from);
      }
    }
    for (std::size_t y = 0; y < plan_.stages.size(); ++y) {
      for (const StageId from : plan_.stages[y].after) {
        if (std::binary_search(feeds[y].begin(), feeds[y].end(), from)) continue;
        Crossing::Reader reader;
        reader.stage = StageId(y);
        tokens[from.index()].readers.push_back(reader);
      }
    }
    for (std::size_t x = 0; x < tokens.size(); ++x) {
      if (tokens[x].readers.empty()) continue;
      tokens[x].tensor = "token";
      tokens[x].from = StageId(x);
      tokens[x].token = true;
      tokens[x].returns = plan_.tokens != TokenRule::kForwardOnly;
      model_.crossings.push_back(std::move(tokens[x]));
    }
    std::stable_sort(model_.crossings.begin(), model_.crossings.end(),
                     [](const Crossing& a, const Crossing& b) { return a.from < b.from; });
  }

  void add_ties() {
    for (std::size_t p = 0; p < holders_.size(); ++p) {
      if (holders_[p].size() < 2) continue;
      const Parameter& parameter = graph_.parameters()[p];
      model_.ties.push_back({parameter.names[0], parameter.bytes(), std::move(holders_[p])});
    }
  }

  const Graph& graph_;
  const Cluster& cluster_;
  const CostTable& table_;
  const Training& training_;
  const PipelinePlan& plan_;
  const StateCopies copies_;
  StagedModel model_;

  std::vector<std::uint32_t> held_;                     // by stage, where orders are lists
  std::vector<StageId> owner_;                          // by operator
  std::vector<std::uint32_t> busy_in_group_;            // by group: devices that host a stage
  std::vector<std::uint32_t> crossing_of_;              // by tensor
  std::vector<std::vector<StageId>> holders_;           // by parameter
  std::set<std::pair<DeviceId, StorageId>> on_device_;  // copies of those stages' devices
  std::map<std::tuple<BatchSize, std::size_t, KindId>, KindCosts> costs_;  // by micro-batch, group size, kind

  // Of the stage at hand.
  std::vector<const KindCosts*> cost_of_kind_;  // of those in kinds_
  std::size_t group_size_ = 1;
  BatchSize micro_batch_;
  std::vector<KindId> kinds_;
  std::vector<bool> recomputed_;  // by position
  std::vector<LocalStorage> locals_;
  std::vector<std::uint32_t> local_of_;  // by tensor: index into locals_
  std::vector<std::uint32_t> state_of_;  // by storage of an input, parameter or constant
  std::vector<TensorId> touched_;
  std::vector<StorageId> touched_states_;
};

}  // namespace

Bytes all_reduce_scratch(Bytes reduced, std::size_t replicas) {
  return reduced + 2 * share_of(reduced, replicas);
}

bool has_all_copies(const StagedModel& model, const Tie& tie, DeviceId device) {
  return std::all_of(tie.stages.begin(), tie.stages.end(), [&](StageId stage) {
    const std::vector<StagedReplica>& replicas = model.stages[stage.index()].replicas;
    return std::any_of(replicas.begin(), replicas.end(), [&](const StagedReplica& replica) {
      return std::find(replica.devices.begin(), replica.devices.end(), device) != replica.devices.end();
    });
  });
}

Bytes tied_sum_scratch(const StagedModel& model, const Tie& tie, DeviceId device) {
  const StagedStage& lowest = model.stages[tie.stages.front().index()];
  return (device == lowest.replicas.front().devices.front() ? 3 : 1) * tie.bytes;
}

StagedModel stage_model(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                        const Training& training, const PipelinePlan& plan, StateCopies copies) {
  return Stager(graph, cluster, costs, training, plan, copies).run();
}

}  // namespace espalier
