#pragma once

// What StagePrices looks up (stage_price.h): the graph's storages, and for each (micro-batch, kinds, degree)
// sums and maxima over its operators.

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "espalier/sim/range_maximum.h"
#include "espalier/sim/stage_price.h"

namespace espalier::internal {

// The graph, flat.
struct PriceGraph {
  explicit PriceGraph(const Graph& graph);

  struct FlatOperator {
    bool has_backward = false;
    bool duplicable = false;
  };

  // The tensors of one memory, and who touches them.
  struct Storage {
    enum class Kind : std::uint8_t {
      kUnused,  // nobody touches it
      kOwn,     // one tensor that an operator makes
      kState,   // one parameter, buffer or constant
      kInput,   // one input of the model
      kOdd      // several tensors, or a gradient that an update reads
    } kind = Kind::kUnused;
    bool with_input = false;         // an input is among its tensors
    bool requires_grad = false;      // kOwn
    bool duplicable = false;         // kOwn: its producer is
    std::uint32_t first = 0;         // operator that touches it
    std::uint32_t last = 0;          // the last one
    std::uint32_t tensor = 0;        // the first
    std::uint32_t gradient_end = 0;  // kOwn with a gradient: that lives from `first` to here
    std::uint32_t touches = 0;       // kOdd: begin in `touches`; the next storage's is the end
    std::uint32_t tensors = 0;       // how many
  };

  // That an operator reads or makes one of a storage's tensors.
  struct Touch {
    std::uint32_t op = 0;
    std::uint32_t tensor = 0;
    std::uint32_t place = 0;  // of the tensor among those of its storage
    bool makes = false;
  };

  // Visits the storages that are touched before operator `cut` and there or later; not those with inputs.
  template <class Visit>
  void for_spanning(std::uint32_t cut, Visit visit) const {
    const std::uint32_t near = cut / stride;
    for (std::uint32_t i = listed_begin[near]; i < listed_begin[near + 1]; ++i) {
      if (storages[listed[i]].last >= cut) visit(listed[i]);
    }
    for (std::uint32_t i = begun_before[std::size_t{near} * stride]; i < begun_before[cut]; ++i) {
      if (storages[by_first[i]].last >= cut) visit(by_first[i]);
    }
  }

  void prefetch(std::uint32_t cut) const {
    __builtin_prefetch(&listed_begin[cut / stride]);
    __builtin_prefetch(&begun_before[cut]);
    __builtin_prefetch(&by_first[begun_before[cut] - (begun_before[cut] > 0 ? 1 : 0)]);
  }

  const Graph& graph;
  std::vector<FlatOperator> operators;
  std::vector<Storage> storages;            // by StorageId, and one more
  std::vector<Touch> touches;               // of a storage by operator, of that what it reads first
  std::vector<std::uint32_t> with_inputs;   // storages
  std::vector<std::uint32_t> by_first;      // storages without inputs, by `first`
  std::vector<std::uint32_t> begun_before;  // by operator, one more: how many of by_first
  std::uint32_t stride = 16;                // operators between the cuts whose storages are listed
  std::vector<std::uint32_t> listed, listed_begin;
};

struct PriceSegment {  // of a stage: a run, or a part of one that is recomputed
  std::uint32_t first = 0, last = 0;
  bool again = false;
};

// From one operator to another, both included.
struct PriceInterval {
  std::uint32_t first = 0, last = 0;
  std::int64_t bytes = 0;
};

// What storages add to a stage.
struct PriceSums {
  std::int64_t saved = 0, recomputed = 0, parameters = 0, buffers = 0;
  std::int64_t saved_for_input = 0, recomputed_for_input = 0;  // of both: what only I needs
  PriceSums& operator+=(const PriceSums& other) {
    saved += other.saved;
    recomputed += other.recomputed;
    saved_for_input += other.saved_for_input;
    recomputed_for_input += other.recomputed_for_input;
    parameters += other.parameters;
    buffers += other.buffers;
    return *this;
  }
  PriceSums& operator-=(const PriceSums& other) {
    saved -= other.saved;
    recomputed -= other.recomputed;
    saved_for_input -= other.saved_for_input;
    recomputed_for_input -= other.recomputed_for_input;
    parameters -= other.parameters;
    buffers -= other.buffers;
    return *this;
  }
};

// Where a stage's storages add what they need.
struct PriceSink {
  PriceSums sums;
  std::vector<PriceInterval> forward, backward;  // alive
  std::vector<StagePrice::Output> outputs;
  std::vector<StagePrice::Received> received;
  std::vector<ParameterId> shared_parameters;

  void clear() {
    sums = {};
    forward.clear();
    backward.clear();
    outputs.clear();
    received.clear();
    shared_parameters.clear();
  }
};

// What tables are for.
struct PriceKindKey {
  BatchSize micro_batch;
  std::uint32_t degree = 1;
  KindId kind;
  friend auto operator<=>(const PriceKindKey&, const PriceKindKey&) = default;
};
struct PriceMemoryKey {
  BatchSize micro_batch;
  std::uint32_t degree = 1;
  std::vector<KindId> kinds;
  friend auto operator<=>(const PriceMemoryKey&, const PriceMemoryKey&) = default;
};

// Times on one kind, and the cells of its operators.
struct KindTable {
  KindTable(const Graph& graph, const DeviceKind& kind, const CostTable& table, BatchSize micro_batch,
            std::uint32_t degree);
  KindCosts costs;
  struct Before {  // sums over smaller operators
    StagePrice::Times times;
    std::uint32_t forbidden = 0;  // how many of them have no cell
  };
  std::vector<Before> before;  // one more than operators
};

// Times of the all-reduces of a group with these routes from member to member; sums over smaller operators.
struct ReduceTable {
  ReduceTable(const Graph& graph, const KindTable& kind, const Cluster& cluster,
              std::span<const DeviceId> group);
  struct Before {
    Duration forward, input_gradient;
  };
  std::vector<Before> before;  // one more than operators
};
struct PriceReduceKey {
  PriceKindKey kind;
  // Of the routes from member to member, each sort once: bandwidth (0: unlimited), latency, both endpoints.
  std::vector<std::array<std::int64_t, 6>> routes;
  friend auto operator<=>(const PriceReduceKey&, const PriceReduceKey&) = default;
};
PriceReduceKey reduce_key(const PriceKindKey& kind, const Cluster& cluster, std::span<const DeviceId> group);

class MemoryTable {
 public:
  // `tensor_bytes` by tensor, at the micro-batch: referred to. `updates` by operator, on a single device.
  MemoryTable(const PriceGraph& flat, std::span<const KindTable* const> kinds,
              const std::vector<std::int64_t>& tensor_bytes, std::uint32_t degree,
              std::vector<std::int64_t> updates);

  // What a storage adds to a stage.
  void measure(std::uint32_t storage, std::span<const PriceSegment> stage, PriceSink& sink) const;
  // Sums and intervals that it adds to a stage that holds all its operators and recomputes all of them or
  // none (again = 1 or 0). Not of an input.
  void measure_whole(std::uint32_t storage, int again, PriceSink& sink) const;

  struct alignas(64) Row {   // what stands together is read together
    PriceSums begun, ended;  // over storages that begin, or have ended, before
    std::int64_t private_bytes = 0, private_for_input = 0, between_halves = 0;  // over smaller operators
  };
  std::vector<Row> rows[2];           // by again; one more than operators
  RangeMaximum forward[2], backward;  // by again: what lives and what the operator needs itself
  RangeMaximum update;                // the largest update of a parameter that the operator reads

 private:
  struct Walk;
  void add_costs(std::span<const KindTable* const> kinds);
  void add_storages();
  void add_odd_storages();
  // Does an operator keep a tensor: no, for I alone, or for W as well?
  enum class Keeps : std::uint8_t { kNo, kForInput, kForWeights };
  Keeps keeps(std::uint32_t op, std::uint32_t tensor) const;
  std::int64_t bytes_of(std::uint32_t tensor) const { return tensor_bytes_[tensor]; }
  std::int64_t share_of(std::int64_t bytes) const { return (bytes + degree_ - 1) / degree_; }
  void add_state(std::uint32_t tensor, PriceSink& sink, bool shared) const;
  void measure_own(const PriceGraph::Storage& storage, std::span<const PriceSegment> stage,
                   PriceSink& sink) const;

  const PriceGraph& flat_;
  std::int64_t degree_;
  const std::vector<std::int64_t>& tensor_bytes_;
  struct Kept {  // a tensor
    std::uint32_t tensor = 0;
    Keeps how = Keeps::kNo;
  };
  std::vector<std::uint32_t> saved_begin_;
  std::vector<Kept> saved_;         // by operator: what it keeps on some kind, each tensor once
  std::vector<Keeps> touch_keeps_;  // by touch: keeps() of it
  std::vector<Keeps> kept_;         // by storage, kOwn: by some operator
  struct Whole {                    // what a kOdd storage adds to a stage with all its operators
    PriceSums sums;
    std::vector<PriceInterval> forward, backward;
  };
  std::vector<Whole> odd_[2];             // by again
  std::vector<std::uint32_t> odd_place_;  // by storage, kOdd: in `odd_`
  std::vector<std::int64_t> forward_own_, backward_own_;
};

// The segment that an operator stands in; null if it is not in the stage.
inline const PriceSegment* segment_of(std::span<const PriceSegment> stage, std::uint32_t op) {
  std::size_t low = 0, high = stage.size();
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (stage[middle].last < op) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < stage.size() && stage[low].first <= op ? &stage[low] : nullptr;
}

}  // namespace espalier::internal
