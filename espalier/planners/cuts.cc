#include "espalier/planners/cuts.h"

#include <cstdint>
#include <map>
#include <utility>

namespace espalier {

OperatorSet repeatable_operators(const Graph& graph) {
  std::vector<OperatorId> operators;
  for (std::size_t i = 0; i < graph.operators().size(); ++i) {
    if (graph.operators()[i].mutates.empty()) operators.push_back(OperatorId(i));
  }
  return OperatorSet(std::move(operators));
}

std::vector<std::optional<Bytes>> crossing_bytes(const Graph& graph) {
  const std::size_t n = graph.operators().size();
  std::vector<std::int64_t> change(n + 2, 0);
  std::vector<std::int64_t> groups(n + 2, 0);
  std::map<std::uint32_t, std::pair<std::size_t, std::size_t>> span_of;
  for (std::size_t i = 0; i < n; ++i) {
    const Operator& op = graph.operators()[i];
    if (op.duplicable) continue;
    const auto readers = graph.successors(OperatorId(i));
    if (!readers.empty()) {
      Bytes bytes;
      for (const TensorId output : op.outputs) bytes += graph.tensor(output).bytes(graph.batch().min);
      change[i + 1] += bytes.count();
      change[readers.back().index() + 1] -= bytes.count();
    }
    if (op.colocation) {
      const auto [at, fresh] = span_of.try_emplace(*op.colocation, i, i);
      at->second.second = i;
    }
  }
  for (const auto& [group, span] : span_of) {
    groups[span.first + 1] += 1;
    groups[span.second + 1] -= 1;
  }
  std::vector<std::optional<Bytes>> result;
  std::int64_t bytes = 0, spanning = 0;
  for (std::size_t gap = 0; gap <= n; ++gap) {
    bytes += change[gap];
    spanning += groups[gap];
    result.push_back(spanning == 0 ? std::optional(Bytes(bytes)) : std::nullopt);
  }
  return result;
}

}  // namespace espalier
