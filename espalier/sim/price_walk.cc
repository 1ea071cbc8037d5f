// A storage of several tensors, or one that an update reads, by a walk over the operators of the stage that
// touch it: in their order, as one process that runs the stage would. An output is a new piece of memory
// unless it shares memory with an input or an earlier output of its operator; a tensor from another stage
// arrives in memory of its own.

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/sim/price_tables.h"

namespace espalier::internal {

struct MemoryTable::Walk {
  struct Local {
    enum class Kind : std::uint8_t { kOwn, kReceived, kInput, kState } kind = Kind::kOwn;
    std::uint32_t tensor = 0;  // the first
    std::uint32_t first = 0, last = 0, last_gradient = 0;
    bool made_again = false, kept = false, kept_again = false, crosses = false, gradient = false;
    bool for_weights = false;  // who keeps it needs it for W
    bool updates = false;      // an update of the stage reads it
    bool for_input_only() const { return kept && !for_weights; }
  };
  struct Known {
    std::uint32_t tensor = 0, local = 0;
    bool read_with_gradient = false;
  };

  const MemoryTable& table;
  const PriceGraph& flat;
  std::span<const PriceSegment> stage;
  StorageId storage;
  PriceSink& sink;
  std::vector<Local> locals = {};
  std::vector<Known> known = {};  // in the order in which they are met
  std::optional<std::uint32_t> state = {};

  const Tensor& tensor_of(std::uint32_t tensor) const { return flat.graph.tensors()[tensor]; }
  bool here(TensorId id) const { return flat.graph.tensor(id).storage == storage; }

  Known* find(TensorId id) {
    const auto at = std::find_if(known.begin(), known.end(),
                                 [&](const Known& each) { return each.tensor == id.index(); });
    return at == known.end() ? nullptr : &*at;
  }
  Local& local(TensorId id) {
    Known* const at = find(id);
    ESP_CHECK(at != nullptr, id);
    return locals[at->local];
  }

  std::uint32_t new_local(TensorId id, Local::Kind kind, std::uint32_t first) {
    Local made;
    made.kind = kind;
    made.tensor = narrow(id.index());
    made.first = made.last = first;
    locals.push_back(made);
    return narrow(locals.size() - 1);
  }

  void read(TensorId id, std::uint32_t op) {
    if (!find(id)) {
      const TensorRole role = flat.graph.tensor(id).role;
      if (role == TensorRole::kActivation) {
        known.push_back({narrow(id.index()), new_local(id, Local::Kind::kReceived, op)});
      } else {
        if (!state) {
          state = new_local(id, role == TensorRole::kInput ? Local::Kind::kInput : Local::Kind::kState,
                            stage.front().first);
        }
        known.push_back({narrow(id.index()), *state});
      }
    }
    Local& memory = local(id);
    memory.last = op;
    if (flat.graph.operators()[op].role == OperatorRole::kUpdate) memory.updates = true;
    if (!flat.operators[op].has_backward) return;
    memory.last_gradient = op;
    if (!flat.operators[op].duplicable) find(id)->read_with_gradient = true;
  }

  void produce(const Operator& op, TensorId id, std::uint32_t number, bool again) {
    const bool gradient = flat.graph.tensor(id).requires_grad;
    for (const auto* list : {&op.inputs, &op.outputs}) {
      for (const TensorId other : *list) {
        Known* const shared = here(other) ? find(other) : nullptr;
        if (!shared) continue;
        Local& memory = locals[shared->local];
        memory.last = number;
        memory.gradient = memory.gradient || gradient;
        known.push_back({narrow(id.index()), shared->local});
        return;
      }
    }
    known.push_back({narrow(id.index()), new_local(id, Local::Kind::kOwn, number)});
    locals.back().made_again = again;
    locals.back().gradient = gradient;
  }

  template <class Visit>
  void for_events(Visit visit) const {
    auto at = flat.events.begin() + flat.storages[storage.index()].events;
    const auto end = flat.events.begin() + flat.storages[storage.index() + 1].events;
    for (const PriceSegment& segment : stage) {
      at = std::lower_bound(at, end, segment.first);
      for (; at != end && *at <= segment.last; ++at) visit(*at, segment.again);
    }
  }

  void run() {
    for_events([&](std::uint32_t number, bool again) {
      const Operator& op = flat.graph.operators()[number];
      for (const TensorId id : op.inputs) {
        if (here(id)) read(id, number);
      }
      for (const TensorId id : op.outputs) {
        if (here(id)) produce(op, id, number, again);
      }
    });
    for_events([&](std::uint32_t number, bool again) { mark_kept(number, again); });
    for (const Known& each : known) cross(each);
    for (const Local& memory : locals) count(memory);
  }

  void mark_kept(std::uint32_t number, bool again) {
    const Operator& op = flat.graph.operators()[number];
    for (const auto* list : {&op.inputs, &op.outputs}) {
      for (const TensorId id : *list) {
        const Keeps how = here(id) ? table.keeps(number, narrow(id.index())) : Keeps::kNo;
        if (how == Keeps::kNo) continue;
        Local& memory = local(id);
        memory.for_weights = memory.for_weights || how == Keeps::kForWeights;
        (again && memory.made_again ? memory.kept_again : memory.kept) = true;
      }
    }
    if (!again) return;
    for (const TensorId id : op.inputs) {
      if (here(id) && !local(id).made_again) local(id).kept = local(id).for_weights = true;
    }
  }

  bool read_outside(TensorId id) const {
    const std::span<const OperatorId> readers = flat.graph.readers(id);
    return std::any_of(readers.begin(), readers.end(),
                       [&](OperatorId op) { return segment_of(stage, narrow(op.index())) == nullptr; });
  }

  void cross(const Known& each) {
    const Tensor& tensor = tensor_of(each.tensor);
    if (!tensor.producer || flat.operators[tensor.producer->index()].duplicable) return;
    const TensorId id(each.tensor);
    Local& memory = locals[each.local];
    if (!segment_of(stage, narrow(tensor.producer->index()))) {
      sink.received.push_back(
          {id, memory.kept, tensor.requires_grad && each.read_with_gradient, memory.for_input_only()});
    } else if (read_outside(id)) {
      sink.outputs.push_back(
          {id, Bytes(output_bytes(each.tensor, memory)), memory.kept, memory.for_input_only()});
    }
  }

  // Of several crossing tensors in one piece of memory the first counts it.
  std::int64_t output_bytes(std::uint32_t tensor, Local& memory) const {
    if (memory.crosses || memory.kind == Local::Kind::kState) return 0;
    memory.crosses = true;
    if (memory.kind != Local::Kind::kReceived) return table.bytes_of(memory.tensor);
    return memory.kept ? 0 : table.bytes_of(tensor);
  }

  void count(const Local& memory) {
    if (memory.kind == Local::Kind::kState) return table.add_state(memory.tensor, sink, true);
    const std::int64_t bytes = table.bytes_of(memory.tensor);
    const bool own = memory.kind != Local::Kind::kReceived && !memory.crosses;
    const std::int64_t for_input = memory.for_weights ? 0 : bytes;
    if (memory.kept_again && !memory.kept) {
      sink.sums.recomputed += bytes;
      sink.sums.recomputed_for_input += for_input;
    }
    if (own && memory.kept) {
      sink.sums.saved += bytes;
      sink.sums.saved_for_input += for_input;
    }
    if (own && !memory.kept && !memory.updates) sink.forward.push_back({memory.first, memory.last, bytes});
    if (own && memory.kind == Local::Kind::kOwn && memory.gradient) {
      sink.backward.push_back({memory.first, std::max(memory.first, memory.last_gradient), bytes});
    }
  }
};

void MemoryTable::measure(std::uint32_t index, std::span<const PriceSegment> stage, PriceSink& sink) const {
  const PriceGraph::Storage& storage = flat_.storages[index];
  switch (storage.kind) {
    case PriceGraph::Storage::Kind::kUnused:
      return;
    case PriceGraph::Storage::Kind::kOwn:
    case PriceGraph::Storage::Kind::kInput:
      return measure_own(storage, stage, sink);
    case PriceGraph::Storage::Kind::kState: {
      const std::span<const OperatorId> readers = flat_.graph.readers(TensorId(storage.tensor));
      for (const PriceSegment& segment : stage) {
        const auto at = std::lower_bound(readers.begin(), readers.end(), OperatorId(segment.first));
        if (at != readers.end() && at->index() <= segment.last) return add_state(storage.tensor, sink, true);
      }
      return;
    }
    case PriceGraph::Storage::Kind::kOdd:
      Walk{*this, flat_, stage, StorageId(index), sink}.run();
      return;
  }
}

}  // namespace espalier::internal
