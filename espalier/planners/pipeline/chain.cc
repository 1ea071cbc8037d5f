#include "espalier/planners/pipeline/chain.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/graph/algorithms.h"
#include "espalier/graph/orders.h"
#include "espalier/graph/renumber.h"

namespace espalier {
namespace {

// The graph with duplicable operators first, then `order`; none if that is how it is.
std::optional<Graph> in_that_order(const Graph& graph, const std::vector<OperatorId>& order) {
  std::vector<OperatorId> all;
  all.reserve(graph.operators().size());
  for (std::size_t i = 0; i < graph.operators().size(); ++i) {
    if (graph.operators()[i].duplicable) all.push_back(OperatorId(i));
  }
  all.insert(all.end(), order.begin(), order.end());
  ESP_CHECK(all.size() == graph.operators().size(), all.size(), graph.operators().size());
  if (std::is_sorted(all.begin(), all.end())) return std::nullopt;
  return renumbered(graph, all);
}

// A difference array over cuts: adds `bytes` to every cut in (from, to].
void add_to_cuts(std::vector<Bytes>& cuts, std::size_t from, std::size_t to, Bytes bytes) {
  if (to <= from) return;
  cuts[from + 1] += bytes;
  cuts[to + 1] -= bytes;
}

Duration slowed(Duration time, std::int32_t per_mille) {
  return time + Duration((time.count() * per_mille + 500) / 1000);
}

std::vector<OperatorId> without_duplicables(const Graph& graph, std::vector<OperatorId> order) {
  std::erase_if(order, [&](OperatorId op) { return graph.op(op).duplicable; });
  return order;
}

}  // namespace

Linearization::Linearization(const Problem& problem, std::vector<OperatorId> order)
    : problem_(problem),
      order_(without_duplicables(problem.graph, std::move(order))),
      duplicables_(problem.graph.operators().size() - order_.size()),
      renumbered_(in_that_order(problem.graph, order_)),
      pins_(resolve_pins(problem.graph, problem.pins)) {
  if (renumbered_) prices_.emplace(*renumbered_, problem.cluster, problem.costs, problem.training);
}

Chain::Chain(const Linearization& line, BatchSize micro_batch, Options options)
    : line_(line),
      micro_batch_(micro_batch),
      members_(std::move(options.members)),
      scratch_(StagePrices::make_scratch()) {
  if (members_.empty()) {
    for (std::size_t place = 0; place < line.size(); ++place) members_.push_back(narrow(place));
  }
  run_end_.resize(members_.size());
  for (std::size_t i = members_.size(); i-- > 0;) {
    const bool joined = i + 1 < members_.size() && members_[i] + 1 == members_[i + 1];
    run_end_[i] = joined ? run_end_[i + 1] : narrow(i + 1);
  }
  std::set<KindId> kinds;
  for (const Device& device : line.problem().cluster.devices()) kinds.insert(device.kind);
  kinds_.assign(kinds.begin(), kinds.end());
  choose_blocks(options.max_blocks);
  measure_work();
  measure_cuts();
  prices_.resize((blocks() + 1) * (blocks() + 1));
  is_known_ = std::vector<std::atomic<bool>>(prices_.size());
}

// Where cuts may stand, and where they must.
struct Chain::Cells {
  explicit Cells(const Chain& chain) : n(chain.members_.size()), forbidden(n + 2, 0), forced(n + 1, 0) {
    const Graph& graph = chain.line_.problem().graph;
    // A group that stands at places p … q forbids the cuts p+1 … q.
    std::map<std::uint32_t, std::pair<std::size_t, std::size_t>> span_of;
    for (std::size_t i = 0; i < n; ++i) {
      const OperatorId op = chain.line_[chain.members_[i]];
      if (const auto group = graph.op(op).colocation) {
        span_of.try_emplace(*group, i, i).first->second.second = i;
      }
    }
    for (const auto& [group, span] : span_of) ++forbidden[span.first + 1], --forbidden[span.second + 1];
    for (std::size_t i = 1; i <= n; ++i) forbidden[i] += forbidden[i - 1];

    // Work before each place, over all kinds: what "evenly" means when there are too many cuts.
    before.resize(n + 1);
    std::vector<Duration> own(n);
    for (const KindId kind : chain.kinds_) {
      const KindCosts costs(graph, chain.line_.problem().cluster.kind(kind), chain.line_.problem().costs,
                            chain.micro_batch_);
      for (std::size_t i = 0; i < n; ++i) {
        const OperatorCost* cost = costs.of(chain.line_[chain.members_[i]]);
        if (cost) own[i] += cost->forward + cost->backward();
      }
    }
    for (std::size_t i = 0; i < n; ++i) before[i + 1] = before[i] + own[i];

    // Operators without work and pin between two of one device go with them.
    std::vector<std::optional<DeviceId>> pin(n);
    for (std::size_t i = 0; i < n; ++i) pin[i] = chain.line_.pin(chain.members_[i]);
    for (std::size_t i = 1; i < n; ++i) {
      if (!pin[i] && own[i] == Duration()) pin[i] = pin[i - 1];
    }
    for (std::size_t i = 1; i < n; ++i) forced[i] = pin[i] != pin[i - 1] && forbidden[i] == 0;
  }

  std::size_t n;
  std::vector<int> forbidden;
  std::vector<char> forced;
  std::vector<Duration> before;
};

void Chain::choose_blocks(std::size_t max_blocks) {
  const Graph& graph = line_.problem().graph;
  const Cells cells(*this);
  const std::size_t n = cells.n;
  const std::vector<Duration>& before = cells.before;
  std::vector<std::size_t> cuts;
  for (std::size_t i = 1; i < n; ++i) {
    const bool idle_before = before[i] == (cuts.empty() ? Duration() : before[cuts.back()]);
    const bool idle_after = before[n] == before[i];
    if (cells.forced[i] || (cells.forbidden[i] == 0 && !idle_before && !idle_after)) cuts.push_back(i);
  }
  if (cuts.size() + 1 > max_blocks) {
    // One cut per share of the work: the last in it, so that shares stay even.
    std::vector<std::size_t> kept;
    const std::int64_t total = std::max<std::int64_t>(before[n].count(), 1);
    std::size_t share = 0;
    for (const std::size_t cut : cuts) {
      const auto mine =
          static_cast<std::size_t>(static_cast<double>(before[cut].count()) / static_cast<double>(total) *
                                   static_cast<double>(max_blocks));
      if (kept.empty() || mine != share || (cells.forced[cut] && cells.forced[kept.back()])) {
        kept.push_back(cut);
        share = mine;
      } else if (!cells.forced[kept.back()]) {
        kept.back() = cut;
      }
    }
    cuts = std::move(kept);
  }
  begin_.push_back(0);
  begin_.insert(begin_.end(), cuts.begin(), cuts.end());
  if (n > 0) begin_.push_back(n);
  writers_.push_back(0);
  for (std::size_t b = 0; b + 1 < begin_.size(); ++b) {
    writers_.push_back(writers_.back());
    BlockPin pin;
    for (std::size_t i = begin_[b]; i < begin_[b + 1]; ++i) {
      writers_.back() += writes_buffer(graph, line_[members_[i]]);
      const auto mine = line_.pin(members_[i]);
      pin.torn = pin.torn || (mine && pin.device && *mine != *pin.device);
      if (mine) pin.device = mine;
    }
    pins_.push_back(pin);
  }
}

void Chain::measure_work() {
  const Problem& problem = line_.problem();
  const std::size_t n = blocks();
  work_.assign(2 * problem.cluster.kinds().size(), {});
  forward_.assign(problem.cluster.kinds().size(), std::vector<Duration>(n + 1));
  forbidden_.assign(problem.cluster.kinds().size(), std::vector<std::size_t>(n + 1, 0));
  for (const KindId kind : kinds_) {
    const std::int32_t neighbour =
        problem.costs.overhead(problem.cluster.kind(kind).name).neighbour_per_mille;
    std::vector<Duration>& alone = work_[2 * kind.index()];
    alone.assign(n + 1, Duration());
    for (std::size_t b = 0; b < n; ++b) {
      const std::vector<OperatorRun> of_block = runs(b, b + 1);
      const StagePrice& price = line_.prices().price({.operators = of_block,
                                                      .recompute = {},
                                                      .micro_batch = micro_batch_,
                                                      .degree = 1,
                                                      .kinds = {&kind, 1}},
                                                     *scratch_);
      forbidden_[kind.index()][b + 1] = forbidden_[kind.index()][b] + (price.forbidden ? 1 : 0);
      alone[b + 1] = alone[b];
      std::vector<Duration>& forward = forward_[kind.index()];
      forward[b + 1] = forward[b];
      if (price.forbidden) continue;
      const StagePrice::Times& times = price.times.front();
      alone[b + 1] += times.forward + times.input_gradient + times.weight_gradient;
      forward[b + 1] += times.forward;
    }
    std::vector<Duration>& crowded = work_[2 * kind.index() + 1];
    for (const Duration time : alone) crowded.push_back(slowed(time, neighbour));
  }
}

void Chain::measure_cuts() {
  const Graph& graph = line_.problem().graph;
  constexpr std::size_t kElsewhere = static_cast<std::size_t>(-1);
  std::vector<std::size_t> member(graph.operators().size(), kElsewhere);
  for (std::size_t i = 0; i < members_.size(); ++i) member[line_[members_[i]].index()] = i;
  std::vector<Bytes> forward(members_.size() + 2), backward(members_.size() + 2);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    for (const TensorId t : graph.op(line_[members_[i]]).outputs) {
      std::size_t last = i;
      for (const OperatorId reader : graph.readers(t)) {
        if (member[reader.index()] != kElsewhere) last = std::max(last, member[reader.index()]);
      }
      if (last == i) continue;
      const Tensor& tensor = graph.tensor(t);
      const Bytes bytes = tensor.bytes(micro_batch_);
      add_to_cuts(forward, i, last, bytes);
      if (tensor.requires_grad) add_to_cuts(backward, i, last, bytes);
    }
  }
  for (std::size_t i = 1; i < forward.size(); ++i) {
    forward[i] += forward[i - 1];
    backward[i] += backward[i - 1];
  }
  for (const std::size_t cut : begin_) {
    forward_bytes_.push_back(forward[cut]);
    backward_bytes_.push_back(backward[cut]);
  }
}

std::vector<OperatorRun> Chain::runs(std::size_t first, std::size_t last) const {
  std::vector<OperatorRun> result;
  for (std::size_t i = begin_[first]; i < begin_[last];) {
    const std::size_t end = std::min<std::size_t>(run_end_[i], begin_[last]);
    result.push_back(line_.run(members_[i], members_[end - 1]));
    i = end;
  }
  return result;
}

std::vector<KindId> Chain::able_kinds(std::size_t first, std::size_t last) const {
  std::vector<KindId> able;
  for (const KindId kind : kinds_) {
    if (can_run(kind, first, last)) able.push_back(kind);
  }
  return able;
}

BlockPrice block_price(const Linearization& line, BatchSize micro_batch, const StagePrice& price,
                       StagePrices::Scratch& scratch) {
  const StageMemory& memory = price.memory;
  Bytes received, gradients_out, kept, sent, gradients_in;
  for (const StagePrice::Received& each : price.received) {
    const Bytes bytes = line.prices().tensor_bytes(each.tensor, micro_batch, scratch);
    received += bytes;
    if (each.gradient) gradients_out += bytes;
  }
  for (const StagePrice::Output& each : price.outputs) {
    (each.saved ? kept : sent) += each.bytes;
    if (line.graph().tensor(each.tensor).requires_grad) gradients_in += each.bytes;
  }
  // While the last of w micro-batches goes forward, w - 1 wait for a gradient; when the first goes back, w.
  const Bytes in_forward = sent + memory.forward_workspace - gradients_in;
  const Bytes in_backward = gradients_out + memory.recomputed + memory.backward_workspace;
  const Bytes again = memory.recomputed > Bytes() ? memory.recomputed + memory.forward_workspace : Bytes();
  BlockPrice result;
  result.trainable = memory.parameters;
  result.saved = memory.saved;
  result.base = memory.parameters + memory.gradients + memory.optimizer_state + memory.buffers + received +
                std::max({in_forward, in_backward, again});
  result.per_in_flight = received + memory.saved + kept + gradients_in;
  return result;
}

const BlockPrice& Chain::price(std::size_t first, std::size_t last) const {
  const std::size_t index = first * (blocks() + 1) + last;
  BlockPrice& price = prices_[index];
  if (first == last || is_known_[index].load(std::memory_order_acquire)) return price;
  const std::lock_guard lock(mutex_);
  if (is_known_[index].load(std::memory_order_relaxed)) return price;
  price = new_price(first, last);
  is_known_[index].store(true, std::memory_order_release);
  return price;
}

BlockPrice Chain::new_price(std::size_t first, std::size_t last) const {
  const std::vector<OperatorRun> of_blocks = runs(first, last);
  const std::vector<KindId> able = able_kinds(first, last);
  if (able.empty()) return {};
  const StagePrice& price = line_.prices().price(
      {.operators = of_blocks, .recompute = {}, .micro_batch = micro_batch_, .degree = 1, .kinds = able},
      *scratch_);
  ESP_CHECK(!price.forbidden);
  return block_price(line_, micro_batch_, price, *scratch_);
}

std::vector<Duration> Chain::times_by_kind() const {
  std::vector<Duration> times(forbidden_.size());
  for (const KindId kind : kinds_) times[kind.index()] = work_before(kind, Crowd::kAlone, blocks());
  return times;
}

std::vector<OperatorId> Chain::operators(std::size_t first, std::size_t last) const {
  std::vector<OperatorId> result;
  for (std::size_t i = begin_[first]; i < begin_[last]; ++i) result.push_back(line_[members_[i]]);
  std::sort(result.begin(), result.end());
  return result;
}

const OperatorSet& Chain::set(std::size_t first, std::size_t last) const {
  const auto [it, fresh] = sets_.try_emplace({first, last});
  if (fresh) it->second = operators(first, last);
  return it->second;
}

bool Chain::is_like(const Chain& other) const {
  const auto free = [](const BlockPin& pin) { return pin == BlockPin(); };
  const bool looks_like = members_.size() == other.members_.size() && begin_ == other.begin_ &&
                          micro_batch_ == other.micro_batch_ && work_ == other.work_ &&
                          forbidden_ == other.forbidden_ && forward_bytes_ == other.forward_bytes_ &&
                          backward_bytes_ == other.backward_bytes_ && writers_ == other.writers_ &&
                          std::all_of(pins_.begin(), pins_.end(), free) &&
                          std::all_of(other.pins_.begin(), other.pins_.end(), free);
  if (!looks_like) return false;
  for (std::size_t block = 0; block < blocks(); ++block) {
    if (price(block, block + 1) != other.price(block, block + 1)) return false;
  }
  return price(0, blocks()) == other.price(0, blocks());
}

std::vector<OperatorId> chain_order(const Graph& graph) {
  return without_duplicables(graph, graph_order(graph));
}

std::vector<OperatorId> branch_by_branch_order(const Graph& graph) {
  // Reverse post-order of a depth-first walk against the edges from the last operator back would interleave
  // towers; walking from each sink, inputs first, finishes what one input needs before the next is begun.
  std::vector<OperatorId> sinks;
  for (const OperatorId op : graph_order(graph)) {
    if (graph.successors(op).empty()) sinks.push_back(op);
  }
  return without_duplicables(graph, depth_first_walk(graph, sinks, Along::kPredecessors, Emit::kOnExit));
}

std::vector<OperatorId> layer_by_layer_order(const Graph& graph) {
  return without_duplicables(graph, breadth_first_order(graph));
}

std::vector<OperatorId> pin_by_pin_order(const Graph& graph, const Pins& pins) {
  // Ready operators by device, those without a pin under none; the device at hand first, then none, then the
  // device whose first ready operator is the smallest. Within one, the branch that was begun last.
  const std::vector<std::optional<DeviceId>> pin = resolve_pins(graph, pins);
  std::vector<std::size_t> missing(graph.operators().size());
  std::map<std::optional<DeviceId>, std::vector<OperatorId>> ready;
  const auto release = [&](OperatorId op) { ready[pin[op.index()]].push_back(op); };
  for (std::size_t i = graph.operators().size(); i-- > 0;) {
    missing[i] = graph.predecessors(OperatorId(i)).size();
    if (missing[i] == 0) release(OperatorId(i));
  }
  std::vector<OperatorId> order;
  std::optional<DeviceId> at_hand;
  while (order.size() < missing.size()) {
    if (ready[at_hand].empty() && at_hand && !ready[std::nullopt].empty()) {
      // What nobody pinned: it may lead back to the device at hand.
    } else if (ready[at_hand].empty()) {
      std::optional<OperatorId> first;
      for (const auto& [device, operators] : ready) {
        if (operators.empty()) continue;
        const OperatorId least = *std::min_element(operators.begin(), operators.end());
        if (!first || least < *first) first = least, at_hand = device;
      }
    }
    std::vector<OperatorId>& from = ready[at_hand].empty() ? ready[std::nullopt] : ready[at_hand];
    const OperatorId op = from.back();
    from.pop_back();
    order.push_back(op);
    const auto readers = graph.successors(op);
    for (auto reader = readers.rbegin(); reader != readers.rend(); ++reader) {
      if (--missing[reader->index()] == 0) release(*reader);
    }
  }
  return without_duplicables(graph, std::move(order));
}

}  // namespace espalier
