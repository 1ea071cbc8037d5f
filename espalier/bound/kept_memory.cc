// Which bytes an operator's micro-batch holds from its forward pass to a backward pass, whatever the plan.
//
// A storage that some operator v keeps is held from the start of v's F to the end of v's B, and even from the
// start of the F that makes it, as an output, on its way or in a slot. It is let go of only if its maker and
// all its keepers are recomputed. So parts of its bytes may be counted with each of these for as long as
// that one is not recomputed.

#include "espalier/bound/kept_memory.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace espalier::internal {
namespace {

// What a storage is kept for, by one operator of any way.
struct Keeper {
  std::size_t op = 0;
  Duration until;
};

struct Storage {
  std::vector<TensorId> tensors;  // those that are counted, all of it or of its chain of views
  bool counted = true;
  std::vector<Keeper> keepers;  // ascending operator
};

class KeptMemory {
 public:
  KeptMemory(const Graph& graph, const Cluster& cluster, std::span<const BatchSize> sizes,
             const Chains& chains, LeastCosts& costs)
      : graph_(graph), cluster_(cluster), sizes_(sizes), chains_(chains), costs_(costs) {}

  void find(const CostTable& table) {
    find_storages();
    for (const Way& way : costs_.ways) {
      at_.emplace_back(graph_, cluster_.kinds()[way.kind], table, way.size, Variant{way.degree, false});
    }
    for (Way& way : costs_.ways) way.kept.resize(graph_.operators().size());
    for (std::size_t i = 0; i < graph_.operators().size(); ++i) add_operator(i);
    for (const Storage& storage : storages_) {
      if (storage.counted && !storage.keepers.empty()) count(storage);
    }
  }

  // Takes from each operator the ways in which it alone needs more than any device of the kind has: what it
  // reads and gives and its workspace, in its F; what it reads and keeps and its workspace, in its F or R.
  void leave_out_what_is_too_large(Room& room) {
    std::vector<double> largest(cluster_.kinds().size(), 0);
    for (const Device& device : cluster_.devices()) {
      double& memory = largest[device.kind.index()];
      memory = std::max(memory, static_cast<double>(device.memory.count()));
    }
    for (std::size_t i = 0; i < graph_.operators().size(); ++i) {
      const Operator& op = graph_.op(OperatorId(i));
      const std::vector<double> read = bytes_of(op.inputs, {}), given = bytes_of(op.outputs, op.inputs);
      for (std::size_t w = 0; w < costs_.ways.size(); ++w) {
        Way& way = costs_.ways[w];
        const OperatorCost* cost = at_[w].of(OperatorId(i));
        if (cost == nullptr || cost->forward == Duration()) continue;  // what takes no time holds nothing
        const std::size_t size = place_of(way.size);
        const double kept = static_cast<double>(cost->private_bytes.count());
        const double needs = room.state[i] / way.degree + static_cast<double>(cost->workspace.count()) +
                             read[size] + std::max(given[size], kept);
        if (needs <= largest[way.kind]) continue;
        way.times[i].reset();
        room.leaves_out = true;
      }
      const bool nowhere = std::none_of(costs_.ways.begin(), costs_.ways.end(),
                                        [&](const Way& way) { return way.times[i].has_value(); });
      if (nowhere && !room.nowhere) room.nowhere = OperatorId(i);
    }
  }

 private:
  // A storage with one tensor, or a chain of views each of which one operator reads: a stage sends one tensor
  // of it at most, so that the simulator counts it wherever it is.
  void find_storages() {
    storages_.resize(graph_.storage_count());
    for (std::size_t i = 0; i < graph_.tensors().size(); ++i) {
      const Tensor& tensor = graph_.tensor(TensorId(i));
      if (tensor.role != TensorRole::kActivation && tensor.role != TensorRole::kInput) {
        storages_[tensor.storage.index()].counted = false;
      }
      storages_[tensor.storage.index()].tensors.push_back(TensorId(i));
    }
    for (Storage& storage : storages_) {
      if (storage.tensors.size() < 2) continue;
      const bool input = graph_.tensor(storage.tensors.front()).role == TensorRole::kInput;
      const bool chain = std::all_of(storage.tensors.begin(), storage.tensors.end(),
                                     [&](TensorId id) { return graph_.readers(id).size() <= 1; });
      storage.counted = storage.counted && chain && !input;
    }
    for (const Operator& op : graph_.operators()) {
      for (const TensorId id : op.mutates) storages_[graph_.tensor(id).storage.index()].counted = false;
    }
  }

  // Tensors that all ways keep, and private bytes.
  void add_operator(std::size_t op) {
    std::optional<std::vector<SavedTensor>> kept;
    const Duration input = chains_.ready[op] + costs_.least[op].input;
    const Duration all = input + costs_.least[op].weight;
    for (std::size_t w = 0; w < costs_.ways.size(); ++w) {
      const OperatorCost* cost = at_[w].of(OperatorId(op));
      if (cost == nullptr) continue;
      const auto add = [&](Duration until, Bytes bytes) {
        if (bytes > Bytes()) costs_.ways[w].kept[op].push_back({until, static_cast<double>(bytes.count())});
      };
      add(input, cost->private_for_input);
      add(all, cost->private_bytes - cost->private_for_input);
      if (!kept) kept = cost->saved;
      std::erase_if(*kept, [&](const SavedTensor& saved) {
        return std::none_of(cost->saved.begin(), cost->saved.end(), [&](const SavedTensor& other) {
          return other.side == saved.side && other.index == saved.index &&
                 (other.for_input_only == saved.for_input_only || saved.for_input_only);
        });
      });
    }
    if (kept) add_keeper(op, *kept, input, all);
  }

  void add_keeper(std::size_t op, const std::vector<SavedTensor>& kept, Duration input, Duration all) {
    const Operator& keeper = graph_.op(OperatorId(op));
    for (const SavedTensor& saved : kept) {
      const auto& tensors = saved.side == SavedTensor::Side::kInput ? keeper.inputs : keeper.outputs;
      if (saved.index >= tensors.size()) continue;  // a plan with this cell is refused
      std::vector<Keeper>& keepers = storages_[graph_.tensor(tensors[saved.index]).storage.index()].keepers;
      const Duration until = saved.for_input_only ? input : all;
      if (!keepers.empty() && keepers.back().op == op) {
        keepers.back().until = std::max(keepers.back().until, until);
      } else {
        keepers.push_back({op, until});
      }
    }
  }

  std::size_t place_of(BatchSize size) const {
    return static_cast<std::size_t>(std::find(sizes_.begin(), sizes_.end(), size) - sizes_.begin());
  }

  // By size: of the storages of these tensors that those others do not share, each once, as far as they are
  // counted.
  std::vector<double> bytes_of(const std::vector<TensorId>& tensors,
                               const std::vector<TensorId>& others) const {
    std::vector<double> sum(sizes_.size(), 0);
    std::vector<StorageId> seen;
    for (const TensorId id : others) seen.push_back(graph_.tensor(id).storage);
    for (const TensorId id : tensors) {
      const StorageId storage = graph_.tensor(id).storage;
      if (!storages_[storage.index()].counted) continue;
      if (std::find(seen.begin(), seen.end(), storage) != seen.end()) continue;
      seen.push_back(storage);
      const std::vector<double> bytes = least_bytes(storages_[storage.index()]);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += bytes[i];
    }
    return sum;
  }

  // Each has a part of it, as long as its work.
  void count(const Storage& storage) {
    struct Part {
      Keeper keeper;
      bool makes = false;  // holds it once, however many devices share the operator
    };
    std::vector<Part> parts;
    Duration last;
    double work = 0;
    for (const Keeper& keeper : storage.keepers) {
      parts.push_back({keeper, false});
      last = std::max(last, keeper.until);
    }
    const std::optional<std::size_t> maker = maker_of(storage);
    if (maker && std::none_of(parts.begin(), parts.end(),
                              [&](const Part& part) { return part.keeper.op == *maker; })) {
      parts.push_back({{*maker, last}, true});
    }
    const auto length = [&](const Part& part) {
      return nanoseconds_of(costs_.least[part.keeper.op].forward) + 1;
    };
    for (const Part& part : parts) work += length(part);
    const std::vector<double> bytes = least_bytes(storage);
    for (const Part& part : parts) {
      const std::size_t op = part.keeper.op;
      for (Way& way : costs_.ways) {
        if (!way.times[op]) continue;
        const double held = bytes[place_of(way.size)] * length(part) / work / (part.makes ? way.degree : 1);
        if (held > 0) way.kept[op].push_back({part.keeper.until, held});
      }
    }
  }

  // Who makes the storage, if it may be counted there: with devices of several kinds it might be held on
  // another kind than its maker's.
  std::optional<std::size_t> maker_of(const Storage& storage) const {
    if (std::count(costs_.used.begin(), costs_.used.end(), 1) != 1) return std::nullopt;
    std::optional<std::size_t> maker;
    for (const TensorId id : storage.tensors) {
      const auto producer = graph_.tensor(id).producer;
      if (!producer || graph_.op(*producer).duplicable) return std::nullopt;
      maker = std::min(maker.value_or(producer->index()), producer->index());
    }
    return maker;
  }

  // By size: of the smallest of its tensors, perhaps in pieces of a smaller micro-batch.
  std::vector<double> least_bytes(const Storage& storage) const {
    std::vector<double> own, least;
    for (const BatchSize size : sizes_) {
      Bytes smallest = Bytes::max();
      for (const TensorId id : storage.tensors) smallest = std::min(smallest, graph_.tensor(id).bytes(size));
      own.push_back(static_cast<double>(smallest.count()));
    }
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      least.push_back(own[i]);
      for (std::size_t p = 0; p < sizes_.size(); ++p) {
        if (sizes_[p] >= sizes_[i] || sizes_[i].count() % sizes_[p].count() != 0) continue;
        const std::int64_t pieces = sizes_[i].count() / sizes_[p].count();
        least[i] = std::min(least[i], static_cast<double>(pieces) * own[p]);
      }
    }
    return least;
  }

  const Graph& graph_;
  const Cluster& cluster_;
  const std::span<const BatchSize> sizes_;
  const Chains& chains_;
  LeastCosts& costs_;
  std::vector<KindCosts> at_;  // by way
  std::vector<Storage> storages_;
};

}  // namespace

Room find_kept(const Graph& graph, const Cluster& cluster, const CostTable& table, const Training& training,
               std::span<const BatchSize> sizes, const Chains& chains, LeastCosts& costs) {
  if (is_training_graph(graph.operators())) return {};
  Room room;
  room.bytes.assign(cluster.kinds().size(), 0);
  double all = 0;
  for (const Device& device : cluster.devices()) {
    const auto bytes = static_cast<double>(device.memory.count());
    room.bytes[device.kind.index()] += bytes;
    all += bytes;
  }
  constexpr std::int64_t kUnit = 1 << 20;
  room.per_parameter =
      2 + static_cast<double>(optimizer_state(training.optimizer, Bytes(kUnit)).count()) / kUnit;
  double held = 0;
  for (const double bytes : costs.updated) held += room.per_parameter * bytes;
  if (held > all) return {};
  for (const double bytes : costs.own_bytes) room.state.push_back(room.per_parameter * bytes);
  KeptMemory kept(graph, cluster, sizes, chains, costs);
  kept.find(table);
  kept.leave_out_what_is_too_large(room);
  return room;
}

}  // namespace espalier::internal
