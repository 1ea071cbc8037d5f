#include "espalier/runtime/even_stages.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

namespace espalier {

std::vector<StageRunner::Interface> even_stages(const Graph& graph, std::size_t count) {
  const std::size_t n = graph.operators().size();
  std::map<std::uint32_t, std::size_t> last;
  for (std::size_t i = 0; i < n; ++i) {
    if (const auto group = graph.operators()[i].colocation) last[*group] = i;
  }
  std::vector<StageRunner::Interface> stages(1);
  std::vector<std::size_t> stage_of(n);
  std::size_t reach = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (i >= n * stages.size() / count && i >= reach) stages.emplace_back();
    if (const auto group = graph.operators()[i].colocation) reach = std::max(reach, last[*group] + 1);
    stage_of[i] = stages.size() - 1;
    stages.back().operators.push_back(OperatorId(i));
  }
  for (std::size_t t = 0; t < graph.tensors().size(); ++t) {
    const auto producer = graph.tensors()[t].producer;
    if (!producer) continue;
    std::set<std::size_t> readers;
    for (const OperatorId op : graph.readers(TensorId(t))) readers.insert(stage_of[op.index()]);
    readers.erase(stage_of[producer->index()]);
    for (const std::size_t s : readers) stages[s].received.push_back(TensorId(t));
    if (!readers.empty()) stages[stage_of[producer->index()]].sent.push_back(TensorId(t));
  }
  return stages;
}

StageRunner::Interface whole_model(const Graph& graph) {
  StageRunner::Interface all;
  for (std::size_t i = 0; i < graph.operators().size(); ++i) all.operators.push_back(OperatorId(i));
  return all;
}

}  // namespace espalier
