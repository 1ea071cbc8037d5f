#include "espalier/runtime/recomputed_operators.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

namespace espalier {

std::vector<bool> mutated_by(const Graph& graph, const std::vector<OperatorId>& operators) {
  std::set<StorageId> written;
  for (const OperatorId op : operators) {
    for (const TensorId id : graph.op(op).mutates) written.insert(graph.tensor(id).storage);
  }
  std::vector<bool> mutated(graph.tensors().size());
  for (std::size_t t = 0; t < mutated.size(); ++t) mutated[t] = written.contains(graph.tensors()[t].storage);
  return mutated;
}

std::vector<bool> recomputed_operators(const Graph& graph, const std::vector<OperatorId>& operators,
                                       const std::vector<OperatorId>& recompute) {
  const std::vector<bool> mutated = mutated_by(graph, operators);
  const auto touches = [&](TensorId t) {
    return mutated[t.index()] && graph.tensor(t).role != TensorRole::kBuffer;
  };
  struct Range {
    std::size_t first = 0, last = 0;
    bool passes_memory_on = false;
  };
  std::map<std::uint32_t, Range> groups;
  std::vector<bool> recomputed(operators.size());
  for (std::size_t i = 0; i < operators.size(); ++i) {
    const Operator& op = graph.op(operators[i]);
    const bool reads_mutated = std::any_of(op.inputs.begin(), op.inputs.end(), touches);
    const bool makes_mutated = std::any_of(op.outputs.begin(), op.outputs.end(), touches);
    recomputed[i] = std::binary_search(recompute.begin(), recompute.end(), operators[i]) &&
                    op.mutates.empty() && !op.colocation && !reads_mutated && !makes_mutated;
    if (!op.colocation) continue;
    Range& group = groups.try_emplace(*op.colocation, Range{i, i, false}).first->second;
    group.last = i;
    group.passes_memory_on = group.passes_memory_on || reads_mutated;
  }
  for (const auto& [number, group] : groups) {
    if (!group.passes_memory_on) continue;
    for (std::size_t i = group.first; i <= group.last; ++i) recomputed[i] = false;
  }
  return recomputed;
}

}  // namespace espalier
