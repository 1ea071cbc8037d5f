#include "espalier/sim/stage_price.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/sim/price_tables.h"
#include "espalier/sim/word_hash.h"

namespace espalier {

using internal::KindTable;
using internal::MemoryTable;
using internal::PriceGraph;
using internal::PriceInterval;
using internal::PriceKindKey;
using internal::PriceMemoryKey;
using internal::PriceReduceKey;
using internal::PriceSegment;
using internal::PriceSink;
using internal::RangeMaximum;
using internal::ReduceTable;

std::vector<OperatorRun> runs_of(std::span<const OperatorId> operators) {
  std::vector<OperatorRun> runs;
  append_runs(operators, runs);
  return runs;
}

void append_runs(std::span<const OperatorId> operators, std::vector<OperatorRun>& runs) {
  if (operators.empty()) return;
  if (operators.back().index() - operators.front().index() + 1 == operators.size()) {  // the usual case
    runs.push_back({narrow(operators.front().index()), narrow(operators.back().index())});
    return;
  }
  std::size_t begin = 0;
  while (begin < operators.size()) {
    // The last place whose operator is as far from the first as the places are: doubled, then halved.
    const auto in_run = [&](std::size_t at) {
      return at < operators.size() && operators[at].index() - operators[begin].index() == at - begin;
    };
    std::size_t step = 1;
    while (in_run(begin + step)) step *= 2;
    std::size_t last = begin + step / 2, beyond = begin + step;
    while (beyond - last > 1) {
      const std::size_t middle = last + (beyond - last) / 2;
      (in_run(middle) ? last : beyond) = middle;
    }
    runs.push_back({narrow(operators[begin].index()), narrow(operators[last].index())});
    begin = last + 1;
  }
}

struct StagePrices::State {
  State(const Graph& g, const Cluster& c, const CostTable& t, const Training& tr)
      : graph(g), cluster(c), table(t), optimizer(tr.optimizer), flat(g) {}

  const KindTable& kind_table(const PriceKindKey& key) {
    std::unique_ptr<KindTable>& made = kinds[key];
    if (!made) {
      made = std::make_unique<KindTable>(graph, cluster.kind(key.kind), table, key.micro_batch, key.degree);
    }
    return *made;
  }

  // By operator: the most that the update of a parameter it reads needs on any of these kinds.
  std::vector<std::int64_t> updates_on(std::span<const KindId> on) const {
    std::vector<std::int64_t> most;
    most.reserve(graph.operators().size());
    for (const Operator& op : graph.operators()) {
      Bytes bytes;
      for (const TensorId input : op.inputs) {
        const auto parameter = graph.tensor(input).parameter;
        if (!parameter || !graph.parameter(*parameter).trainable) continue;
        for (const KindId kind : on) {
          bytes =
              std::max(bytes, update_workspace(optimizer, graph.parameter(*parameter), cluster.kind(kind)));
        }
      }
      most.push_back(bytes.count());
    }
    return most;
  }

  const std::vector<std::int64_t>& sizes_at(BatchSize micro_batch) {
    std::vector<std::int64_t>& made = sizes[micro_batch];
    if (made.empty()) {
      made.reserve(graph.tensors().size());
      for (const Tensor& tensor : graph.tensors()) made.push_back(tensor.bytes(micro_batch).count());
    }
    return made;
  }

  const Graph& graph;
  const Cluster& cluster;
  const CostTable& table;
  const Optimizer optimizer;
  const PriceGraph flat;
  std::mutex making;                                     // guards the maps; what is in them stays as it is
  std::map<BatchSize, std::vector<std::int64_t>> sizes;  // of tensors
  std::map<PriceKindKey, std::unique_ptr<KindTable>> kinds;
  std::map<PriceMemoryKey, std::unique_ptr<MemoryTable>> memories;
  std::map<PriceReduceKey, std::unique_ptr<ReduceTable>> reduces;
};

class StagePrices::Scratch {
 public:
  struct Tables {  // those of one question, remembered without a lock
    std::uint32_t number = 0;
    PriceMemoryKey key;
    std::vector<const KindTable*> kinds;
    const MemoryTable* memory = nullptr;
  };

  const Tables& tables_for(State& state, const StageQuestion& question);
  const std::vector<std::int64_t>& sizes_at(State& state, BatchSize micro_batch);
  const ReduceTable& reduces_for(State& state, const PriceKindKey& kind, std::span<const DeviceId> group);
  // Answers are remembered: a search asks of most stages again and again.
  const StagePrice& answer(const PriceGraph& flat, const Tables& tables, const StageQuestion& question,
                           const Optimizer& optimizer);

 private:
  const StagePrice& new_answer(const PriceGraph& flat, const Tables& tables, const StageQuestion& question,
                               const Optimizer& optimizer);
  void read_key(const Tables& tables, const StageQuestion& question);
  void cut(const StageQuestion& question);
  bool add_times(const StageQuestion& question, const Tables& tables);
  void add_segment(const PriceGraph& flat, const MemoryTable& table, const PriceSegment& segment);
  void add_inside(const PriceGraph& flat, const MemoryTable& table);
  void add_borders(const PriceGraph& flat, const MemoryTable& table);
  std::int64_t peak(const RangeMaximum& none, const RangeMaximum& again, std::vector<PriceInterval>& alive);

  struct Change {
    std::uint32_t position = 0;
    std::int64_t bytes = 0;
  };

  struct Remembered {
    std::vector<std::uint32_t> key;
    StagePrice price;
  };
  static constexpr std::size_t kWorthRemembering = 3;  // runs of a question
  static constexpr std::size_t kMostRemembered = 4096;

  StagePrice price_;
  std::unordered_map<std::uint64_t, Remembered> remembered_;  // by the key's hash
  std::vector<std::uint32_t> key_;
  std::deque<Tables> known_;
  std::vector<std::pair<BatchSize, const std::vector<std::int64_t>*>> known_sizes_;
  std::map<std::pair<PriceKindKey, std::vector<DeviceId>>, const ReduceTable*> known_reduces_;
  std::vector<PriceSegment> segments_;
  PriceSink sink_, whole_;
  std::vector<std::uint32_t> borders_;    // storages
  std::vector<std::uint32_t> border_of_;  // by storage: the last question in which it was one
  std::uint32_t question_ = 0;
  std::vector<Change> changes_;
};

std::unique_ptr<StagePrices::Scratch, void (*)(StagePrices::Scratch*)> StagePrices::make_scratch() {
  return {new Scratch, [](Scratch* scratch) { delete scratch; }};
}

StagePrices::StagePrices(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                         const Training& training)
    : state_(std::make_unique<State>(graph, cluster, costs, training)) {}
StagePrices::~StagePrices() = default;
StagePrices::StagePrices(StagePrices&&) noexcept = default;

auto StagePrices::Scratch::tables_for(State& state, const StageQuestion& question) -> const Tables& {
  for (const Tables& tables : known_) {
    if (tables.key.micro_batch == question.micro_batch && tables.key.degree == question.degree &&
        std::equal(tables.key.kinds.begin(), tables.key.kinds.end(), question.kinds.begin(),
                   question.kinds.end())) {
      return tables;
    }
  }
  Tables tables;
  tables.number = narrow(known_.size());
  tables.key = {question.micro_batch, question.degree, {question.kinds.begin(), question.kinds.end()}};
  const std::lock_guard lock(state.making);
  for (const KindId kind : question.kinds) {
    tables.kinds.push_back(&state.kind_table({question.micro_batch, question.degree, kind}));
  }
  std::unique_ptr<MemoryTable>& made = state.memories[tables.key];
  if (!made) {
    made = std::make_unique<MemoryTable>(state.flat, tables.kinds, state.sizes_at(question.micro_batch),
                                         question.degree, state.updates_on(question.kinds));
  }
  tables.memory = made.get();
  known_.push_back(std::move(tables));
  return known_.back();
}

const std::vector<std::int64_t>& StagePrices::Scratch::sizes_at(State& state, BatchSize micro_batch) {
  for (const auto& [known, sizes] : known_sizes_) {
    if (known == micro_batch) return *sizes;
  }
  const std::lock_guard lock(state.making);
  known_sizes_.push_back({micro_batch, &state.sizes_at(micro_batch)});
  return *known_sizes_.back().second;
}

const ReduceTable& StagePrices::Scratch::reduces_for(State& state, const PriceKindKey& kind,
                                                     std::span<const DeviceId> group) {
  const ReduceTable*& known = known_reduces_[{kind, {group.begin(), group.end()}}];
  if (known) return *known;
  const PriceReduceKey key = internal::reduce_key(kind, state.cluster, group);
  const std::lock_guard lock(state.making);
  std::unique_ptr<ReduceTable>& made = state.reduces[key];
  if (!made) made = std::make_unique<ReduceTable>(state.graph, state.kind_table(kind), state.cluster, group);
  known = made.get();
  return *known;
}

// Runs, cut where recomputation begins or ends.
void StagePrices::Scratch::cut(const StageQuestion& question) {
  segments_.clear();
  auto again = question.recompute.begin();
  for (const OperatorRun& run : question.operators) {
    std::uint32_t from = run.first;
    for (; again != question.recompute.end() && again->first <= run.last; ++again) {
      ESP_CHECK(again->first >= from && again->last <= run.last, again->first, again->last);
      if (again->first > from) segments_.push_back({from, again->first - 1, false});
      segments_.push_back({again->first, again->last, true});
      from = again->last + 1;
    }
    if (from <= run.last) segments_.push_back({from, run.last, false});
  }
  ESP_CHECK(again == question.recompute.end() && !segments_.empty());
}

// False if a cell is missing.
bool StagePrices::Scratch::add_times(const StageQuestion& question, const Tables& tables) {
  price_.times.clear();
  price_.forbidden.reset();
  for (std::size_t k = 0; k < tables.kinds.size(); ++k) {
    const KindTable& table = *tables.kinds[k];
    StagePrice::Times times;
    for (const PriceSegment& segment : segments_) {
      const KindTable::Before &begin = table.before[segment.first], &end = table.before[segment.last + 1];
      if (end.forbidden > begin.forbidden) {
        const auto at = std::find_if(table.before.begin() + segment.first, table.before.end(),
                                     [&](const auto& each) { return each.forbidden > begin.forbidden; });
        const OperatorId op(static_cast<std::size_t>(at - table.before.begin()) - 1);
        if (!price_.forbidden || op < price_.forbidden->op) {
          price_.forbidden = ForbiddenCell{op, question.kinds[k], question.degree};
        }
        break;
      }
      times.forward += end.times.forward - begin.times.forward;
      times.input_gradient += end.times.input_gradient - begin.times.input_gradient;
      times.weight_gradient += end.times.weight_gradient - begin.times.weight_gradient;
      if (segment.again) times.recompute += end.times.forward - begin.times.forward;
    }
    price_.times.push_back(times);
  }
  return !price_.forbidden;
}

// Takes a segment's share of the sums and finds the storages that span its borders.
void StagePrices::Scratch::add_segment(const PriceGraph& flat, const MemoryTable& table,
                                       const PriceSegment& segment) {
  const int again = segment.again ? 1 : 0;
  const MemoryTable::Row &begin = table.rows[again][segment.first],
                         &end = table.rows[again][segment.last + 1];
  sink_.sums += end.ended;
  sink_.sums -= begin.begun;
  (again ? sink_.sums.recomputed : sink_.sums.saved) += end.private_bytes - begin.private_bytes;
  (again ? sink_.sums.recomputed_for_input : sink_.sums.saved_for_input) +=
      end.private_for_input - begin.private_for_input;
  price_.memory.between_halves += Bytes(end.between_halves - begin.between_halves);
  const auto border = [&](std::uint32_t s) {
    const PriceGraph::Storage& storage = flat.storages[s];
    whole_.clear();
    table.measure_whole(s, again, whole_);
    if (storage.first < segment.first && storage.last > segment.last)
      sink_.sums += whole_.sums;  // in neither sum
    const auto take_out = [&](const std::vector<PriceInterval>& alive, std::vector<PriceInterval>& from) {
      for (const PriceInterval& interval : alive) {
        const std::uint32_t first = std::max(interval.first, segment.first);
        const std::uint32_t last = std::min(interval.last, segment.last);
        if (first <= last) from.push_back({first, last, -interval.bytes});
      }
    };
    take_out(whole_.forward, sink_.forward);
    take_out(whole_.backward, sink_.backward);
    if (border_of_[s] == question_) return;
    border_of_[s] = question_;
    borders_.push_back(s);
  };
  flat.for_spanning(segment.first, border);
  flat.for_spanning(segment.last + 1, [&](std::uint32_t s) {
    if (flat.storages[s].first >= segment.first) border(s);  // the others spanned the first border too
  });
}

void StagePrices::Scratch::add_inside(const PriceGraph& flat, const MemoryTable& table) {
  if (border_of_.size() != flat.storages.size() || ++question_ == 0) {
    border_of_.assign(flat.storages.size(), 0);
    question_ = 1;
  }
  borders_.clear();
  for (const PriceSegment& segment : segments_) add_segment(flat, table, segment);
}

void StagePrices::Scratch::add_borders(const PriceGraph& flat, const MemoryTable& table) {
  for (const std::uint32_t s : borders_) table.measure(s, segments_, sink_);
  for (const std::uint32_t s : flat.with_inputs) {
    const PriceGraph::Storage& storage = flat.storages[s];
    if (storage.first > segments_.back().last || storage.last < segments_.front().first) continue;
    table.measure(s, segments_, sink_);
  }
}

// The largest sum of what lives at an operator of the stage and what that needs itself.
std::int64_t StagePrices::Scratch::peak(const RangeMaximum& none, const RangeMaximum& again,
                                        std::vector<PriceInterval>& alive) {
  changes_.clear();
  const std::uint32_t end = segments_.back().last;
  for (const PriceInterval& interval : alive) {
    changes_.push_back({interval.first, interval.bytes});
    if (interval.last < end) changes_.push_back({interval.last + 1, -interval.bytes});
  }
  std::sort(changes_.begin(), changes_.end(),
            [](const Change& a, const Change& b) { return a.position < b.position; });
  std::int64_t best = 0, sum = 0;
  auto change = changes_.begin();
  for (const PriceSegment& segment : segments_) {
    const RangeMaximum& table = segment.again ? again : none;
    std::uint32_t from = segment.first;
    for (; change != changes_.end() && change->position <= segment.last; ++change) {
      if (change->position > from) {
        best = std::max(best, table.of(from, change->position - 1) + sum);
        from = change->position;
      }
      sum += change->bytes;
    }
    best = std::max(best, table.of(from, segment.last) + sum);
  }
  return best;
}

// Which tables, which operators, which of them again.
void StagePrices::Scratch::read_key(const Tables& tables, const StageQuestion& question) {
  key_.assign({tables.number, narrow(question.operators.size())});
  for (const auto& runs : {question.operators, question.recompute}) {
    for (const OperatorRun& run : runs) key_.insert(key_.end(), {run.first, run.last});
  }
}

const StagePrice& StagePrices::Scratch::answer(const PriceGraph& flat, const Tables& tables,
                                               const StageQuestion& question, const Optimizer& optimizer) {
  if (question.operators.size() + question.recompute.size() < kWorthRemembering) {
    return new_answer(flat, tables, question, optimizer);
  }
  read_key(tables, question);
  const std::uint64_t hash = internal::hash_of(key_);
  const auto known = remembered_.find(hash);
  if (known != remembered_.end() && known->second.key == key_) return known->second.price;
  if (remembered_.size() >= kMostRemembered) remembered_.clear();
  Remembered& fresh = remembered_[hash];
  fresh.price = new_answer(flat, tables, question, optimizer);
  fresh.key = key_;
  return fresh.price;
}

const StagePrice& StagePrices::Scratch::new_answer(const PriceGraph& flat, const Tables& tables,
                                                   const StageQuestion& question,
                                                   const Optimizer& optimizer) {
  const MemoryTable& table = *tables.memory;
  price_.memory = {};
  sink_.clear();
  cut(question);
  if (add_times(question, tables)) {
    add_inside(flat, table);
    add_borders(flat, table);
  } else {
    price_.times.clear();
  }
  const auto by_tensor = [](const auto& a, const auto& b) { return a.tensor < b.tensor; };
  std::sort(sink_.outputs.begin(), sink_.outputs.end(), by_tensor);
  std::sort(sink_.received.begin(), sink_.received.end(), by_tensor);
  price_.outputs.swap(sink_.outputs);
  price_.received.swap(sink_.received);
  price_.shared_parameters.swap(sink_.shared_parameters);
  if (price_.forbidden) return price_;
  StageMemory& memory = price_.memory;
  memory.parameters = memory.gradients = Bytes(sink_.sums.parameters);
  memory.buffers = Bytes(sink_.sums.buffers);
  memory.optimizer_state = optimizer_state(optimizer, memory.parameters);
  memory.saved = Bytes(sink_.sums.saved);
  memory.recomputed = Bytes(sink_.sums.recomputed);
  memory.saved_for_input = Bytes(sink_.sums.saved_for_input);
  memory.recomputed_for_input = Bytes(sink_.sums.recomputed_for_input);
  memory.forward_workspace = Bytes(peak(table.forward[0], table.forward[1], sink_.forward));
  memory.backward_workspace = Bytes(peak(table.backward, table.backward, sink_.backward));
  for (const PriceSegment& segment : segments_) {
    memory.update_workspace =
        std::max(memory.update_workspace, Bytes(table.update.of(segment.first, segment.last)));
  }
  return price_;
}

const StagePrice& StagePrices::price(const StageQuestion& question, Scratch& scratch) const {
  State& state = *state_;
  const Scratch::Tables& tables = scratch.tables_for(state, question);
  return scratch.answer(state.flat, tables, question, state.optimizer);
}

StagePrice::Times StagePrices::collectives(const StageQuestion& question, KindId kind,
                                           std::span<const DeviceId> group, Scratch& scratch) const {
  const ReduceTable& table =
      scratch.reduces_for(*state_, {question.micro_batch, question.degree, kind}, group);
  StagePrice::Times times;
  for (const OperatorRun& run : question.operators) {
    times.forward += table.before[run.last + 1].forward - table.before[run.first].forward;
    times.input_gradient +=
        table.before[run.last + 1].input_gradient - table.before[run.first].input_gradient;
  }
  for (const OperatorRun& run : question.recompute) {
    times.recompute += table.before[run.last + 1].forward - table.before[run.first].forward;
  }
  return times;
}

void StagePrices::prefetch(const StageQuestion& question, Scratch& scratch) const {
  const Scratch::Tables& tables = scratch.tables_for(*state_, question);
  const std::size_t again = question.recompute.empty() ? 0 : 1;
  for (const OperatorRun& run : question.operators) {
    for (const std::uint32_t border : {run.first, run.last + 1}) {
      for (const KindTable* kind : tables.kinds) __builtin_prefetch(&kind->before[border]);
      const char* const row = reinterpret_cast<const char*>(&tables.memory->rows[again][border]);
      __builtin_prefetch(row);
      __builtin_prefetch(row + 64);
      state_->flat.prefetch(border);
      tables.memory->forward[again].prefetch(std::min(border, run.last));
      tables.memory->backward.prefetch(std::min(border, run.last));
      tables.memory->update.prefetch(std::min(border, run.last));
    }
  }
}

Bytes StagePrices::tensor_bytes(TensorId tensor, BatchSize micro_batch, Scratch& scratch) const {
  return Bytes(scratch.sizes_at(*state_, micro_batch)[tensor.index()]);
}

}  // namespace espalier
