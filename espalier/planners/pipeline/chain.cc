#include "espalier/planners/pipeline/chain.h"

#include <algorithm>
#include <map>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/graph/algorithms.h"
#include "espalier/graph/orders.h"

namespace espalier {
namespace {

constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

// position[operator] in the order, kNowhere for those outside.
std::vector<std::size_t> positions(const Graph& graph, const std::vector<OperatorId>& order) {
  std::vector<std::size_t> position(graph.operators().size(), kNowhere);
  for (std::size_t i = 0; i < order.size(); ++i) position[order[i].index()] = i;
  return position;
}

// A difference array over cuts: adds `bytes` to every cut in (from, to].
void add_to_cuts(std::vector<Bytes>& cuts, std::size_t from, std::size_t to, Bytes bytes) {
  if (to <= from) return;
  cuts[from + 1] += bytes;
  cuts[to + 1] -= bytes;
}

}  // namespace

Chain::Chain(const Problem& problem, std::vector<OperatorId> order, BatchSize micro_batch,
             std::size_t max_blocks)
    : order_(std::move(order)) {
  std::erase_if(order_, [&](OperatorId op) { return problem.graph.op(op).duplicable; });
  const OperatorCosts costs(problem.graph, problem.cluster, problem.costs, micro_batch);
  choose_blocks(problem, costs, max_blocks);
  measure_cuts(problem, micro_batch);
  measure_ranges(problem, costs, micro_batch);
}

void Chain::choose_blocks(const Problem& problem, const OperatorCosts& costs, std::size_t max_blocks) {
  const Graph& graph = problem.graph;
  const std::size_t n = order_.size();
  // A group that stands at positions p … q forbids the cuts p+1 … q.
  std::vector<int> spanned(n + 2, 0);
  std::map<std::uint32_t, std::pair<std::size_t, std::size_t>> span_of;
  for (std::size_t i = 0; i < n; ++i) {
    if (const auto group = graph.op(order_[i]).colocation) {
      const auto [it, fresh] = span_of.try_emplace(*group, i, i);
      it->second.second = i;
    }
  }
  for (const auto& [group, span] : span_of) ++spanned[span.first + 1], --spanned[span.second + 1];

  // Work before each position on the first kind: what "evenly" means when there are too many cuts.
  std::vector<Duration> before(n + 1);
  const KindId kind = problem.cluster.devices().front().kind;
  for (std::size_t i = 0; i < n; ++i) {
    before[i + 1] = before[i] + costs.of(order_[i], kind).forward + costs.of(order_[i], kind).backward();
  }
  std::vector<std::size_t> cuts;
  int depth = 0;
  for (std::size_t i = 1; i < n; ++i) {
    depth += spanned[i];
    const bool idle_before = before[i] == (cuts.empty() ? Duration() : before[cuts.back()]);
    const bool idle_after = before[n] == before[i];
    if (depth == 0 && !idle_before && !idle_after) cuts.push_back(i);
  }
  if (cuts.size() + 1 > max_blocks) {
    // One cut per share of the work: the last in it, so that shares stay even.
    std::vector<std::size_t> kept;
    const std::int64_t total = std::max<std::int64_t>(before[n].count(), 1);
    std::size_t share = 0;
    for (std::size_t c = 0; c < cuts.size(); ++c) {
      const auto mine =
          static_cast<std::size_t>(static_cast<double>(before[cuts[c]].count()) / static_cast<double>(total) *
                                   static_cast<double>(max_blocks));
      if (mine == share && !kept.empty()) {
        kept.back() = cuts[c];
      } else {
        kept.push_back(cuts[c]);
        share = mine;
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
    for (std::size_t i = begin_[b]; i < begin_[b + 1]; ++i)
      writers_.back() += writes_buffer(graph, order_[i]);
  }
}

void Chain::measure_cuts(const Problem& problem, BatchSize micro_batch) {
  const Graph& graph = problem.graph;
  const std::vector<std::size_t> position = positions(graph, order_);
  std::vector<Bytes> forward(order_.size() + 2), backward(order_.size() + 2);
  for (std::size_t i = 0; i < order_.size(); ++i) {
    for (const TensorId t : graph.op(order_[i]).outputs) {
      std::size_t last = i;
      for (const OperatorId reader : graph.readers(t)) {
        if (position[reader.index()] != kNowhere) last = std::max(last, position[reader.index()]);
      }
      const Tensor& tensor = graph.tensor(t);
      add_to_cuts(forward, i, last, tensor.bytes(micro_batch));
      if (tensor.requires_grad) add_to_cuts(backward, i, last, tensor.bytes(micro_batch));
    }
  }
  for (std::size_t i = 1; i < forward.size(); ++i)
    forward[i] += forward[i - 1], backward[i] += backward[i - 1];
  for (const std::size_t cut : begin_) {
    forward_bytes_.push_back(forward[cut]);
    backward_bytes_.push_back(backward[cut]);
  }
}

void Chain::measure_ranges(const Problem& problem, const OperatorCosts& costs, BatchSize micro_batch) {
  const Graph& graph = problem.graph;
  const std::size_t n = blocks();
  for (std::size_t k = 0; k < problem.cluster.kinds().size(); ++k) {
    std::vector<Duration> prefix(n + 1);
    for (std::size_t b = 0; b < n; ++b) {
      prefix[b + 1] = prefix[b];
      for (std::size_t i = begin_[b]; i < begin_[b + 1]; ++i) {
        const OperatorCost& cost = costs.of(order_[i], KindId(k));
        prefix[b + 1] += cost.forward + cost.backward();
      }
    }
    work_prefix_.push_back(std::move(prefix));
    overhead_.push_back(2 * problem.costs.overhead(problem.cluster.kinds()[k].name).per_action);
  }

  const KindId kind = problem.cluster.devices().front().kind;
  for (auto* table : {&trainable_, &resident_, &saved_, &workspace_})
    table->assign((n + 1) * (n + 1), Bytes());
  // Where each storage is first produced: what was made before a range is received, and counted with its
  // slots.
  std::vector<std::size_t> made(graph.storage_count(), kNowhere);
  for (std::size_t i = order_.size(); i-- > 0;) {
    for (const TensorId t : graph.op(order_[i]).outputs) made[graph.tensor(t).storage.index()] = i;
  }
  std::vector<std::size_t> kept_stamp(graph.storage_count(), kNowhere),
      read_stamp(graph.storage_count(), kNowhere);
  for (std::size_t first = 0; first < n; ++first) {
    Bytes trainable, resident, saved, workspace;
    for (std::size_t b = first; b < n; ++b) {
      for (std::size_t i = begin_[b]; i < begin_[b + 1]; ++i) {
        const Operator& op = graph.op(order_[i]);
        const OperatorCost& cost = costs.of(order_[i], kind);
        workspace = std::max(workspace, cost.workspace);
        saved += cost.private_bytes;
        for (const TensorId t : op.inputs) {
          const Tensor& tensor = graph.tensor(t);
          if (tensor.role == TensorRole::kActivation || tensor.role == TensorRole::kInput) continue;
          if (std::exchange(read_stamp[tensor.storage.index()], first) == first) continue;
          resident +=
              tensor.parameter ? graph.parameter(*tensor.parameter).bytes() : tensor.bytes(micro_batch);
          if (tensor.parameter && graph.parameter(*tensor.parameter).trainable)
            trainable += graph.parameter(*tensor.parameter).bytes();
        }
        for (const SavedTensor& s : cost.saved) {
          const auto& side = s.side == SavedTensor::Side::kInput ? op.inputs : op.outputs;
          if (s.index >= side.size()) continue;
          const Tensor& tensor = graph.tensor(side[s.index]);
          if (tensor.role != TensorRole::kActivation && tensor.role != TensorRole::kInput) continue;
          if (made[tensor.storage.index()] < begin_[first]) continue;
          if (std::exchange(kept_stamp[tensor.storage.index()], first) != first)
            saved += tensor.bytes(micro_batch);
        }
      }
      trainable_[index(first, b + 1)] = trainable;
      resident_[index(first, b + 1)] = resident;
      saved_[index(first, b + 1)] = saved;
      workspace_[index(first, b + 1)] = workspace;
    }
  }
}

std::vector<OperatorId> Chain::operators(std::size_t first, std::size_t last) const {
  std::vector<OperatorId> result(order_.begin() + static_cast<std::ptrdiff_t>(begin_[first]),
                                 order_.begin() + static_cast<std::ptrdiff_t>(begin_[last]));
  std::sort(result.begin(), result.end());
  return result;
}

Duration Chain::work(KindId kind, std::size_t first, std::size_t last) const {
  const std::vector<Duration>& prefix = work_prefix_[kind.index()];
  return prefix[last] - prefix[first] + overhead_[kind.index()];
}

Bytes Chain::memory(const Optimizer& optimizer, std::size_t first, std::size_t last,
                    std::int64_t in_flight) const {
  return resident(first, last) + trainable(first, last) + optimizer_state(optimizer, trainable(first, last)) +
         in_flight * saved(first, last) + (in_flight + 1) * forward_bytes_[first] + workspace(first, last);
}

std::vector<OperatorId> chain_order(const Graph& graph) {
  std::vector<OperatorId> order;
  for (std::size_t i = 0; i < graph.operators().size(); ++i) {
    if (!graph.operators()[i].duplicable) order.push_back(OperatorId(i));
  }
  return order;
}

std::vector<OperatorId> branch_by_branch_order(const Graph& graph) {
  // Reverse post-order of a depth-first walk against the edges from the last operator back would interleave
  // towers; walking from each sink, inputs first, finishes what one input needs before the next is begun.
  std::vector<OperatorId> sinks;
  for (const OperatorId op : graph_order(graph)) {
    if (graph.successors(op).empty()) sinks.push_back(op);
  }
  std::vector<OperatorId> order = depth_first_walk(graph, sinks, Along::kPredecessors, Emit::kOnExit);
  std::erase_if(order, [&](OperatorId op) { return graph.op(op).duplicable; });
  return order;
}

}  // namespace espalier
