#include "espalier/planners/literal/layer_sequence.h"

#include "espalier/base/check.h"
#include "espalier/planners/literal/downsets.h"

namespace espalier::literal {

std::vector<std::size_t> layer_sequence(const PipedreamProfile& profile) {
  ItemLists before(profile.nodes.size());
  for (const PipedreamProfile::Edge& edge : profile.edges) {
    before[edge.to].push_back(static_cast<std::uint32_t>(edge.from));
  }
  const std::vector<std::uint32_t> order = topological_order(before);
  if (order.size() != profile.nodes.size()) throw InputError(profile.file + ": the graph has a cycle");
  std::vector<std::size_t> sequence;
  for (const std::uint32_t node : order) {
    const bool input = profile.nodes[node].description.starts_with("Input");
    if (!input || !before[node].empty()) sequence.push_back(node);
  }
  return sequence;
}

}  // namespace espalier::literal
