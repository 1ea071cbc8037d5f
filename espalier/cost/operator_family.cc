#include "espalier/cost/operator_family.h"

#include <algorithm>
#include <cctype>

#include "espalier/cost/operator_table.h"

namespace espalier {
namespace {

bool only_views(const Graph& graph, const Operator& op) {
  if (!op.mutates.empty() || op.outputs.empty()) return false;
  return std::all_of(op.outputs.begin(), op.outputs.end(), [&](TensorId output) {
    return std::any_of(op.inputs.begin(), op.inputs.end(), [&](TensorId input) {
      return graph.tensor(input).storage == graph.tensor(output).storage;
    });
  });
}

}  // namespace

std::string base_name(std::string_view target) {
  for (const std::string_view prefix : {"torch.ops.", "aten.", "higher_order.", "prims.", "onnx.", "ai.onnx.",
                                        "_operator.", "operator.", "aten::"}) {
    if (target.rfind(prefix, 0) == 0) target.remove_prefix(prefix.size());
  }
  target = target.substr(0, target.find('.'));
  while (target.size() > 1 && target.front() == '_') target.remove_prefix(1);
  while (target.size() > 1 && target.back() == '_') target.remove_suffix(1);
  std::string name(target);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

OperatorFamily operator_family(const Graph& graph, OperatorId id) {
  const Operator& op = graph.op(id);
  OperatorFamily family;
  if (only_views(graph, op)) {
    family.family = Family::kView;
    family.has_gradient = false;
    return family;
  }
  if (const OperatorFamily* const known = find_family(base_name(op.target))) return *known;
  // Keeps its floating-point inputs, as most operators do.
  for (std::size_t i = 0; i < std::min<std::size_t>(op.inputs.size(), 24); ++i) family.saves |= 1u << i;
  family.flops_per_element = 2;
  return family;
}

}  // namespace espalier
