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
  std::vector<Known> known = {};        // in the order in which they are met
  std::vector<std::uint32_t> met = {};  // by place in the storage: where in `known`, from 1; 0: not there
  std::optional<std::uint32_t> state = {};

  const Tensor& tensor_of(std::uint32_t tensor) const { return flat.graph.tensors()[tensor]; }

  Known* find(const PriceGraph::Touch& touch) {
    return met[touch.place] == 0 ? nullptr : &known[met[touch.place] - 1];
  }
  Known& note(const PriceGraph::Touch& touch, std::uint32_t its_local) {
    known.push_back({touch.tensor, its_local});
    met[touch.place] = narrow(known.size());
    return known.back();
  }

  std::uint32_t new_local(std::uint32_t tensor, Local::Kind kind, std::uint32_t first) {
    Local made;
    made.kind = kind;
    made.tensor = tensor;
    made.first = made.last = first;
    locals.push_back(made);
    return narrow(locals.size() - 1);
  }

  // Where a tensor lies that nobody in the stage has made before.
  std::uint32_t found(const PriceGraph::Touch& touch) {
    const TensorRole role = tensor_of(touch.tensor).role;
    if (role == TensorRole::kActivation) return new_local(touch.tensor, Local::Kind::kReceived, touch.op);
    if (!state) {
      const bool input = role == TensorRole::kInput;
      state = new_local(touch.tensor, input ? Local::Kind::kInput : Local::Kind::kState, stage.front().first);
    }
    return *state;
  }

  Local& read(const PriceGraph::Touch& touch) {
    Known* const before = find(touch);
    Known& tensor = before ? *before : note(touch, found(touch));
    Local& memory = locals[tensor.local];
    memory.last = touch.op;
    if (flat.graph.operators()[touch.op].role == OperatorRole::kUpdate) memory.updates = true;
    if (!flat.operators[touch.op].has_backward) return memory;
    memory.last_gradient = touch.op;
    if (!flat.operators[touch.op].duplicable) tensor.read_with_gradient = true;
    return memory;
  }

  // `touches`: the operator's, up to the one that makes it.
  Local& make(std::span<const PriceGraph::Touch> touches, bool again) {
    const PriceGraph::Touch& touch = touches.back();
    const bool gradient = tensor_of(touch.tensor).requires_grad;
    for (const PriceGraph::Touch& other : touches.first(touches.size() - 1)) {
      const Known* const shared = find(other);
      if (!shared) continue;
      Local& memory = locals[shared->local];
      memory.last = touch.op;
      memory.gradient = memory.gradient || gradient;
      note(touch, shared->local);
      return memory;
    }
    note(touch, new_local(touch.tensor, Local::Kind::kOwn, touch.op));
    locals.back().made_again = again;
    locals.back().gradient = gradient;
    return locals.back();
  }

  static void mark_kept(Local& memory, const PriceGraph::Touch& touch, Keeps how, bool again) {
    if (how != Keeps::kNo) {
      memory.for_weights = memory.for_weights || how == Keeps::kForWeights;
      (again && memory.made_again ? memory.kept_again : memory.kept) = true;
    }
    if (again && !touch.makes && !memory.made_again) memory.kept = memory.for_weights = true;
  }

  void run() {
    const PriceGraph::Storage& own = flat.storages[storage.index()];
    const std::span<const PriceGraph::Touch> all(flat.touches.data() + own.touches,
                                                 flat.touches.data() + (&own + 1)->touches);
    met.assign(own.tensors, 0);
    known.reserve(own.tensors);
    locals.reserve(4);
    auto at = all.begin();
    auto of_operator = at;
    for (const PriceSegment& segment : stage) {
      at = std::lower_bound(at, all.end(), segment.first,
                            [](const PriceGraph::Touch& touch, std::uint32_t op) { return touch.op < op; });
      for (; at != all.end() && at->op <= segment.last; ++at) {
        if (at->op != of_operator->op) of_operator = at;
        Local& memory = at->makes ? make({of_operator, at + 1}, segment.again) : read(*at);
        const auto number = own.touches + static_cast<std::size_t>(at - all.begin());
        mark_kept(memory, *at, table.touch_keeps_[number], segment.again);
      }
    }
    for (const Known& each : known) cross(each);
    for (const Local& memory : locals) count(memory);
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
