#include "espalier/planners/pipeline/piece_table.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>
#include <utility>

#include "espalier/cost/cost_table.h"
#include "espalier/planners/cuts.h"
#include "espalier/planners/orders/order_moves.h"

namespace espalier {
namespace {

constexpr std::size_t kReach = 2;  // of neighbouring cuts

struct Gap {
  std::uint32_t at = 0;  // the first operator behind it
  Duration before;
};

}  // namespace

Duration SegmentWay::work(KindId kind) const {
  const StagePrice::Times& of = times[kind.index()];
  return of.forward + of.input_gradient + of.weight_gradient + of.recompute;
}

CutGraph::CutGraph(const Graph& graph)
    : crossing(crossing_bytes(graph)), repeatable(repeatable_operators(graph)) {}

PieceTable::PieceTable(const Problem& problem, const CutGraph& graph, BatchSize micro_batch,
                       std::size_t count, Cuts cuts)
    : problem_(problem), graph_(graph), micro_batch_(micro_batch), scratch_(StagePrices::make_scratch()) {
  for (std::size_t k = 0; k < problem.cluster.kinds().size(); ++k) kinds_.push_back(KindId(k));
  cut(count);
  if (cuts == Cuts::kNarrow) leave_wide_cuts_out();
  segments_.resize(size());
  std::map<TensorId, std::size_t> last;
  for (std::size_t i = 0; i < size() && possible_; ++i) {
    for (const PassedTensor& read : segment(i, 1).again.reads) last[read.tensor] = i;
  }
  for (std::size_t i = 0; i < size() && possible_; ++i) {
    for (PassedTensor& output : segments_[i][0].again.outputs) output.last_reader = last[output.tensor];
  }
}

const Segment& PieceTable::segment(std::size_t first, std::size_t count) const {
  std::vector<Segment>& known = segments_[first];  // of one piece, of two, …
  while (known.size() < count) known.push_back(made({begin(first), begin(first + known.size() + 1) - 1}));
  return known[count - 1];
}

StageDraft PieceTable::stage(std::size_t first, std::size_t end, DeviceId device,
                             const std::function<bool(std::size_t)>& is_again) const {
  StageDraft stage;
  std::vector<OperatorRun> runs, again;
  for (std::size_t piece = first; piece < end; ++piece) {
    const Segment& one = segment(piece, 1);
    runs.push_back(one.run);
    if (!is_again(piece)) continue;
    again.insert(again.end(), one.repeatable.runs().begin(), one.repeatable.runs().end());
  }
  stage.operators = OperatorSet(std::move(runs));
  stage.devices = {device};
  stage.recompute = OperatorSet(std::move(again));
  return stage;
}

Bytes PieceTable::median_insides() const {
  std::vector<Bytes> insides;
  for (std::size_t i = 0; i < size(); ++i) insides.push_back(segment(i, 1).again.insides);
  const auto middle = insides.begin() + static_cast<std::ptrdiff_t>(size() / 2);
  std::nth_element(insides.begin(), middle, insides.end());
  return *middle;
}

std::vector<Duration> PieceTable::work() const {
  std::vector<Duration> sum(kinds_.size());
  for (std::size_t i = 0; i < size(); ++i) {
    for (const KindId kind : kinds_) sum[kind.index()] += segment(i, 1).again.work(kind);
  }
  return sum;
}

std::uint32_t PieceTable::begin(std::size_t piece) const {
  return piece < size() ? begins_[piece] : narrow(problem_.graph.operators().size());
}

void PieceTable::cut(std::size_t count) {
  const std::vector<std::optional<Bytes>>& crossing = graph_.crossing;
  const KindCosts costs(problem_.graph, problem_.cluster.kinds().front(), problem_.costs, micro_batch_);
  std::vector<Gap> gaps;
  Duration all;
  for (std::uint32_t op = 0; op < problem_.graph.operators().size(); ++op) {
    if (problem_.graph.operators()[op].duplicable) continue;
    if (all > Duration() && crossing[op]) gaps.push_back({op, all});
    const OperatorCost* cost = costs.of(OperatorId(op));
    all += cost ? cost->forward + cost->backward() : Duration();
    if (cost && halves_are_guessed(*cost)) halves_are_known_ = false;
  }
  const double share = static_cast<double>(all.count()) / static_cast<double>(count);
  const auto shares = [&](double number) { return Duration(static_cast<std::int64_t>(number * share)); };
  begins_ = {0};
  auto from = gaps.begin();
  for (std::size_t i = 1; i < count; ++i) {
    const Duration end = shares(static_cast<double>(i) + 0.5), middle = shares(static_cast<double>(i));
    const auto until = std::find_if(from, gaps.end(), [&](const Gap& gap) { return gap.before > end; });
    const auto rank = [&](const Gap& gap) {
      return std::tuple(*crossing[gap.at], std::abs(gap.before.count() - middle.count()));
    };
    const auto best =
        std::min_element(from, until, [&](const Gap& a, const Gap& b) { return rank(a) < rank(b); });
    if (best != until && best->before < all) begins_.push_back(best->at);
    from = until;
  }
}

void PieceTable::leave_wide_cuts_out() {
  const std::vector<std::optional<Bytes>>& crossing = graph_.crossing;
  const std::vector<std::uint32_t> near = begins_;
  std::size_t place = 0;
  const std::size_t left_out = std::erase_if(begins_, [&](std::uint32_t at) {
    const std::size_t i = place++;
    for (std::size_t j = std::max(i, kReach + 1) - kReach; j < std::min(near.size(), i + kReach + 1); ++j) {
      if (i > 0 && 2 * *crossing[at] > 3 * *crossing[near[j]]) return true;
    }
    return false;
  });
  leaves_cuts_out_ = left_out > 0;
}

Segment PieceTable::made(OperatorRun run) const {
  const OperatorSet operators(std::vector{run});
  Segment segment{
      .run = run, .repeatable = common(operators, graph_.repeatable), .state = {}, .again = {}, .whole = {}};
  price(operators, {}, segment, segment.whole);
  price(operators, segment.repeatable.runs(), segment, segment.again);
  return segment;
}

void PieceTable::price(const OperatorSet& operators, std::span<const OperatorRun> again, Segment& segment,
                       SegmentWay& way) const {
  const StagePrices& prices = problem_.oracle->prices();
  const StagePrice price = prices.price(
      {.operators = operators.runs(), .recompute = again, .micro_batch = micro_batch_, .kinds = kinds_},
      *scratch_);
  if (price.forbidden) possible_ = false;
  if (!possible_) return;
  const StageMemory& memory = price.memory;
  segment.state = memory.parameters + memory.buffers + memory.gradients + memory.optimizer_state;
  segment.has_weights =
      memory.gradients > Bytes() || std::ranges::any_of(price.times, [](const StagePrice::Times& times) {
        return times.weight_gradient > Duration();
      });
  way.times = price.times;
  way.kept = memory.saved;
  Bytes gradients, sent;
  for (const StagePrice::Received& each : price.received) {
    const Bytes bytes = prices.tensor_bytes(each.tensor, micro_batch_, *scratch_);
    way.reads.push_back({each.tensor, bytes, each.saved, each.gradient});
    if (each.gradient) gradients += bytes;
  }
  for (const StagePrice::Output& each : price.outputs) {
    way.outputs.push_back(
        {each.tensor, each.bytes, each.saved, problem_.graph.tensor(each.tensor).requires_grad});
    if (!each.saved) sent += each.bytes;
  }
  way.insides = std::max({sent + memory.forward_workspace, memory.recomputed + memory.forward_workspace,
                          gradients + memory.recomputed + memory.backward_workspace});
}

}  // namespace espalier
