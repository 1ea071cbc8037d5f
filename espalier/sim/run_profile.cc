// Profiles of runs from tables: see run_profile.h. What is counted where follows ProfileTables::Walk, of
// which this is the closed form for storages that lie inside a run or span a cut.

#include "espalier/sim/run_profile.h"

#include <algorithm>
#include <optional>

namespace espalier::internal {
namespace {

constexpr std::uint32_t kNone = ProfileTables::kNone;

}  // namespace

RangeMaximum::RangeMaximum(std::vector<std::int64_t> values) : values_(std::move(values)) {
  std::vector<std::int64_t> row;
  for (std::size_t i = 0; i < values_.size(); i += kBlock) {
    row.push_back(*std::max_element(
        values_.begin() + static_cast<std::ptrdiff_t>(i),
        values_.begin() + static_cast<std::ptrdiff_t>(std::min(i + kBlock, values_.size()))));
  }
  for (std::size_t width = 1; !row.empty(); width *= 2) {
    blocks_.push_back(row);
    const std::size_t next = row.size() > width ? row.size() - width : 0;
    for (std::size_t i = 0; i < next; ++i) row[i] = std::max(row[i], row[i + width]);
    row.resize(next);
  }
}

std::int64_t RangeMaximum::of(std::size_t first, std::size_t last) const {
  const auto scan = [&](std::size_t from, std::size_t to, std::int64_t most) {
    for (std::size_t i = from; i < to; ++i) most = std::max(most, values_[i]);
    return most;
  };
  const std::size_t begin = first / kBlock + 1, end = last / kBlock;  // whole blocks between
  if (begin >= end + 1) return scan(first, last + 1, values_[first]);
  std::int64_t most = scan(first, begin * kBlock, values_[first]);
  most = scan(end * kBlock, last + 1, most);
  if (begin == end) return most;
  std::size_t level = 0;
  while (std::size_t{2} << level <= end - begin) ++level;
  const std::vector<std::int64_t>& row = blocks_[level];
  return std::max({most, row[begin], row[end - (std::size_t{1} << level)]});
}

// --- what the whole graph has

RunTables::RunTables(const Graph& graph, const ProfileTables& tables, std::size_t micro_batches,
                     std::size_t kinds)
    : graph_(graph), tables_(tables), kinds_(kinds) {
  find_storages(graph);
  if (!usable_) return;
  list_spanning();
  for (std::size_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
    for (std::size_t kind = 0; kind < kinds; ++kind) costs_.push_back(costs_for(micro_batch, kind));
  }
}

bool RunTables::trainable(std::uint32_t tensor) const {
  const std::optional<ParameterId> parameter = graph_.tensors()[tensor].parameter;
  return parameter && graph_.parameter(*parameter).trainable;
}

// Follows the graph as a walk over all of it would, in which every input is known.
struct RunTables::Links {
  const Graph& graph;
  RunTables& tables;
  enum class Of : std::uint8_t { kNobody, kStorage, kInput, kState };
  struct Link {
    Of of = Of::kNobody;
    std::uint32_t index = 0;
  };
  std::vector<Link> by_tensor = std::vector<Link>(graph.tensors().size());
  std::vector<Link> by_storage = std::vector<Link>(graph.storage_count());  // inputs and state
  struct Reads {
    std::vector<StateRead> reads;
    std::vector<std::uint32_t> operators;
  };
  std::vector<Reads> states = {};

  void read(std::uint32_t op, std::uint32_t tensor, bool has_backward) {
    const Tensor& what = graph.tensors()[tensor];
    if (what.role == TensorRole::kActivation) {
      tables.usable_ &= by_tensor[tensor].of != Of::kNobody;
    } else {
      read_from_outside(op, tensor, what);
    }
    if (by_tensor[tensor].of != Of::kStorage) return;
    Storage& storage = tables.storages_[by_tensor[tensor].index];
    storage.last = op;
    if (has_backward) storage.gradient_end = op;
  }

  void read_from_outside(std::uint32_t op, std::uint32_t tensor, const Tensor& what) {
    tables.usable_ &= !what.producer;
    Link& link = by_storage[what.storage.index()];
    const Of of = what.role == TensorRole::kInput ? Of::kInput : Of::kState;
    if (link.of == Of::kNobody) {
      link.of = of;
      link.index = static_cast<std::uint32_t>(of == Of::kInput ? tables.inputs_.size() : states.size());
      if (of == Of::kInput) tables.inputs_.push_back({tensor, op, op, false});
      if (of == Of::kState) states.emplace_back();
    }
    tables.usable_ &= link.of == of;
    by_tensor[tensor] = link;
    if (of == Of::kInput) {
      Input& input = tables.inputs_[link.index];
      input.last = op;
      input.odd |= input.tensor != tensor;
      return;
    }
    Reads& reads = states[link.index];
    const std::uint32_t previous = reads.operators.empty() ? 0 : reads.operators.back() + 1;
    if (previous == op + 1) return;  // the same operator read it already
    reads.reads.push_back({tensor, previous});
    reads.operators.push_back(op);
  }

  void produce(std::uint32_t op, const Operator& what, std::uint32_t tensor) {
    const Tensor& made = graph.tensors()[tensor];
    tables.usable_ &= made.role == TensorRole::kActivation;
    Link link;
    for (const auto* list : {&what.inputs, &what.outputs}) {
      for (const TensorId other : *list) {
        if (link.of == Of::kNobody && graph.tensor(other).storage == made.storage) {
          link = by_tensor[other.index()];
        }
      }
    }
    if (link.of == Of::kInput) tables.inputs_[link.index].odd = true;
    if (link.of == Of::kStorage) {
      Storage& storage = tables.storages_[link.index];
      storage.odd = true;
      storage.last = op;
      storage.gradient |= made.requires_grad;
      by_tensor[tensor] = link;
      return;
    }
    const bool counted = link.of == Of::kNobody;
    by_tensor[tensor] = {Of::kStorage, static_cast<std::uint32_t>(tables.storages_.size())};
    tables.storages_.push_back({tensor, op, op, op, made.requires_grad, !counted, what.duplicable, counted});
  }
};

void RunTables::find_storages(const Graph& graph) {
  Links links{graph, *this};
  for (std::uint32_t op = 0; op < graph.operators().size() && usable_; ++op) {
    const Operator& what = graph.operators()[op];
    const bool has_backward = tables_.operator_of(op).has_backward;
    storage_begin_.push_back(static_cast<std::uint32_t>(storages_.size()));
    for (const TensorId input : what.inputs) {
      links.read(op, static_cast<std::uint32_t>(input.index()), has_backward);
    }
    for (const TensorId output : what.outputs) {
      links.produce(op, what, static_cast<std::uint32_t>(output.index()));
    }
  }
  storage_begin_.push_back(static_cast<std::uint32_t>(storages_.size()));
  if (!usable_) return;
  for (const Links::Link& link : links.by_tensor) {
    storage_of_.push_back(link.of == Links::Of::kStorage ? link.index : kNone);
  }

  std::vector<std::vector<std::uint32_t>> single(graph.operators().size());
  std::vector<std::vector<StateRead>> several(graph.operators().size());
  for (const Links::Reads& state : links.states) {
    const bool shared = std::any_of(state.reads.begin(), state.reads.end(),
                                    [&](const StateRead& read) { return tables_.shared(read.tensor); });
    for (std::size_t i = 0; i < state.reads.size(); ++i) {
      if (state.reads.size() > 1 || shared) {
        several[state.operators[i]].push_back(state.reads[i]);
      } else {
        single[state.operators[i]].push_back(state.reads[i].tensor);
      }
    }
  }
  single_begin_ = reads_begin_ = {0};
  for (std::size_t op = 0; op < single.size(); ++op) {
    single_reads_.insert(single_reads_.end(), single[op].begin(), single[op].end());
    reads_.insert(reads_.end(), several[op].begin(), several[op].end());
    single_begin_.push_back(static_cast<std::uint32_t>(single_reads_.size()));
    reads_begin_.push_back(static_cast<std::uint32_t>(reads_.size()));
  }
}

// Storages alive at every stride-th cut, few enough for linear room.
void RunTables::list_spanning() {
  std::size_t widths = 0;
  for (const Storage& storage : storages_) widths += storage.last - storage.first;
  const std::size_t operators = storage_begin_.size() - 1;
  while (widths / stride_ > 8 * operators) stride_ *= 2;
  const std::size_t cuts = operators / stride_ + 1;
  std::vector<std::vector<std::uint32_t>> lists(cuts);
  for (std::uint32_t s = 0; s < storages_.size(); ++s) {
    for (std::size_t cut = storages_[s].first / stride_ + 1; cut * stride_ <= storages_[s].last; ++cut) {
      lists[cut].push_back(s);
    }
  }
  listed_begin_ = {0};
  for (const auto& list : lists) {
    listed_.insert(listed_.end(), list.begin(), list.end());
    listed_begin_.push_back(static_cast<std::uint32_t>(listed_.size()));
  }
}

bool RunTables::keeps(const ProfileTables::Costs& costs, std::uint32_t op, std::uint32_t tensor) const {
  const auto begin = costs.saved.begin();
  return std::find(begin + costs.saved_begin[op], begin + costs.saved_begin[op + 1], tensor) !=
         begin + costs.saved_begin[op + 1];
}

RunTables::Costs RunTables::costs_for(std::size_t micro_batch, std::size_t kind) const {
  const ProfileTables::Costs& from = tables_.costs(micro_batch, kind);
  const std::size_t operators = storage_begin_.size() - 1;
  const auto bytes_of = [&](std::uint32_t tensor) {
    return tables_.tensor_bytes(micro_batch, tensor).count();
  };
  Costs costs;
  costs.kept.assign(storages_.size(), false);
  for (const std::uint32_t tensor : from.saved) {
    if (storage_of_[tensor] != kNone) costs.kept[storage_of_[tensor]] = true;
  }
  costs.before.resize(operators + 1);
  std::vector<std::int64_t> live[3] = {};  // forward, forward recomputed, backward: changes, then sums
  for (auto& each : live) each.assign(operators + 1, 0);
  for (std::size_t s = 0; s < storages_.size(); ++s) {
    const Storage& storage = storages_[s];
    if (!storage.counted) continue;
    const std::int64_t bytes = bytes_of(storage.tensor);
    if (costs.kept[s]) {
      costs.before[storage.first + 1].kept_begun += bytes;
      costs.before[storage.last + 1].kept_ended += bytes;
    }
    const auto add = [&](std::vector<std::int64_t>& changes, std::uint32_t last) {
      changes[storage.first] += bytes;
      changes[last + 1] -= bytes;
    };
    if (!costs.kept[s]) add(live[0], storage.last);
    add(live[1], storage.last);
    if (storage.gradient) add(live[2], storage.gradient_end);
  }
  for (std::uint32_t op = 0; op < operators; ++op) {
    Before& next = costs.before[op + 1];
    for (std::uint32_t i = single_begin_[op]; i < single_begin_[op + 1]; ++i) {
      (trainable(single_reads_[i]) ? next.parameters : next.buffers) += bytes_of(single_reads_[i]);
    }
    const Before& sum = costs.before[op];
    next.private_bytes = sum.private_bytes + from.private_bytes[op].count();
    next.between_halves = sum.between_halves + from.between_halves[op].count();
    next.kept_begun += sum.kept_begun;
    next.kept_ended += sum.kept_ended;
    next.parameters += sum.parameters;
    next.buffers += sum.buffers;
  }
  for (auto& each : live) {
    for (std::size_t op = 1; op <= operators; ++op) each[op] += each[op - 1];
    each.pop_back();
  }
  for (std::uint32_t op = 0; op < operators; ++op) {
    const std::int64_t workspace = from.workspace[op].count();
    live[0][op] += workspace;
    live[1][op] += workspace;
    const auto& flat = tables_.operator_of(op);
    if (flat.has_backward) live[2][op] += workspace + flat.fresh_gradients.count();
  }
  costs.forward[0] = RangeMaximum(std::move(live[0]));
  costs.forward[1] = RangeMaximum(std::move(live[1]));
  costs.backward = RangeMaximum(std::move(live[2]));
  return costs;
}

// --- a run

// Visits the storages that are made before operator `cut` and met there or later, until one visit says no.
template <class Visit>
bool RunTables::for_spanning(std::uint32_t cut, Visit visit) const {
  const std::uint32_t listed = cut / stride_;
  for (std::uint32_t i = listed_begin_[listed]; i < listed_begin_[listed + 1]; ++i) {
    const std::uint32_t s = listed_[i];
    if (storages_[s].last >= cut && !visit(s, storages_[s])) return false;
  }
  for (std::uint32_t s = storage_begin_[listed * stride_]; s < storage_begin_[cut]; ++s) {
    if (storages_[s].last >= cut && !visit(s, storages_[s])) return false;
  }
  return true;
}

struct RunTables::Work {
  const RunTables& tables;
  const Run& run;
  Scratch& scratch;
  StageProfile& result;
  const ProfileTables::Costs& op_costs = tables.tables_.costs(run.micro_batch, run.kind);
  const Costs& costs = tables.costs_[run.micro_batch * tables.kinds_ + run.kind];
  const bool again = run.recompute == Recompute::kAll;
  std::int64_t kept = costs.before[run.last + 1].kept_ended - costs.before[run.first].kept_begun;
  std::int64_t recomputed_outputs = 0, saved_inputs = 0;

  std::int64_t bytes_of(std::uint32_t tensor) const {
    return tables.tables_.tensor_bytes(run.micro_batch, tensor).count();
  }

  // From `first` to `last`, as far as that is in the run.
  void add(std::vector<Change>& changes, std::uint32_t first, std::uint32_t last, std::int64_t bytes) const {
    first = std::max(first, run.first);
    if (last < first) return;
    changes.push_back({first, bytes});
    if (last < run.last) changes.push_back({last + 1, -bytes});
  }

  void take_out(std::uint32_t s, const Storage& storage) const {
    const std::int64_t bytes = bytes_of(storage.tensor);
    if (again || !costs.kept[s]) add(scratch.forward, storage.first, storage.last, -bytes);
    if (storage.gradient) add(scratch.backward, storage.first, storage.gradient_end, -bytes);
  }

  struct Use {
    std::uint32_t last = kNone;  // operator of the run that reads it
    bool kept = false, gradient = false;
  };
  Use use_of(std::uint32_t tensor) const {
    Use use;
    const std::span<const OperatorId> readers = tables.graph_.readers(TensorId(tensor));
    auto at = readers.size() <= 4 ? readers.begin()
                                  : std::lower_bound(readers.begin(), readers.end(), OperatorId(run.first));
    for (; at != readers.end() && at->index() <= run.last; ++at) {
      if (at->index() < run.first) continue;
      use.last = static_cast<std::uint32_t>(at->index());
      use.kept = use.kept || tables.keeps(op_costs, use.last, tensor);
      const auto& flat = tables.tables_.operator_of(use.last);
      use.gradient |= flat.has_backward && !flat.duplicable;
    }
    return use;
  }

  bool enters(std::uint32_t s, const Storage& storage) {
    if (storage.odd) return false;
    take_out(s, storage);
    if (storage.last > run.last && costs.kept[s]) kept += bytes_of(storage.tensor);  // never counted
    if (storage.duplicable) return true;
    const Use use = use_of(storage.tensor);
    if (use.last == kNone) return true;
    result.received.push_back({storage.tensor, again || use.kept, storage.gradient && use.gradient});
    return true;
  }

  bool leaves(std::uint32_t s, const Storage& storage) {
    if (storage.first < run.first) return true;  // it entered
    if (storage.odd || storage.duplicable) return false;
    take_out(s, storage);
    const std::int64_t bytes = bytes_of(storage.tensor);
    const bool saved = tables.keeps(op_costs, storage.first, storage.tensor) || use_of(storage.tensor).kept;
    if (again && saved) recomputed_outputs += bytes;
    result.outputs.push_back({storage.tensor, Bytes(bytes), saved && !again});
    return true;
  }

  bool take_inputs() {
    for (const Input& input : tables.inputs_) {
      if (input.first > run.last || input.last < run.first) continue;
      if (input.odd) return false;
      const Use use = use_of(input.tensor);
      if (use.last == kNone) continue;
      const std::int64_t bytes = bytes_of(input.tensor);
      if (again || use.kept) {
        saved_inputs += bytes;
      } else {
        add(scratch.forward, run.first, use.last, bytes);
      }
    }
    return true;
  }

  void take_state() {
    std::int64_t parameters = costs.before[run.last + 1].parameters - costs.before[run.first].parameters;
    std::int64_t buffers = costs.before[run.last + 1].buffers - costs.before[run.first].buffers;
    for (std::uint32_t i = tables.reads_begin_[run.first]; i < tables.reads_begin_[run.last + 1]; ++i) {
      const StateRead& read = tables.reads_[i];
      if (read.previous > run.first) continue;  // counted there
      const bool trainable = tables.trainable(read.tensor);
      (trainable ? parameters : buffers) += bytes_of(read.tensor);
      if (trainable && tables.tables_.shared(read.tensor)) {
        const ParameterId parameter = *tables.graph_.tensors()[read.tensor].parameter;
        result.shared_parameters.push_back(static_cast<std::uint32_t>(parameter.index()));
      }
    }
    result.memory.parameters = result.memory.gradients = Bytes(parameters);
    result.memory.buffers = Bytes(buffers);
  }

  Bytes peak(const RangeMaximum& table, std::vector<Change>& changes) const {
    std::sort(changes.begin(), changes.end(),
              [](const Change& a, const Change& b) { return a.position < b.position; });
    std::int64_t best = 0, sum = 0;
    std::uint32_t from = run.first;
    for (const Change& change : changes) {
      if (change.position > from) {
        best = std::max(best, table.of(from, change.position - 1) + sum);
        from = change.position;
      }
      sum += change.bytes;
    }
    return Bytes(std::max(best, table.of(from, run.last) + sum));
  }
};

bool RunTables::profile(const Run& run, Scratch& scratch, StageProfile& result) const {
  if (!usable_) return false;
  result.memory = {};
  result.outputs.clear();
  result.received.clear();
  result.shared_parameters.clear();
  scratch.forward.clear();
  scratch.backward.clear();
  Work work{*this, run, scratch, result};
  if (!for_spanning(run.first, [&](auto s, const Storage& storage) { return work.enters(s, storage); }) ||
      !for_spanning(run.last + 1, [&](auto s, const Storage& storage) { return work.leaves(s, storage); }) ||
      !work.take_inputs()) {
    return false;
  }
  std::sort(result.outputs.begin(), result.outputs.end(),
            [](const auto& a, const auto& b) { return a.tensor < b.tensor; });
  work.take_state();
  const Before &begin = work.costs.before[run.first], &end = work.costs.before[run.last + 1];
  const std::int64_t own = end.private_bytes - begin.private_bytes + work.kept;
  result.memory.saved = Bytes(work.saved_inputs + (work.again ? 0 : own));
  result.memory.recomputed = Bytes(work.again ? own + work.recomputed_outputs : 0);
  result.memory.between_halves = Bytes(end.between_halves - begin.between_halves);
  result.memory.forward_workspace = work.peak(work.costs.forward[work.again ? 1 : 0], scratch.forward);
  result.memory.backward_workspace = work.peak(work.costs.backward, scratch.backward);
  return true;
}

}  // namespace espalier::internal
