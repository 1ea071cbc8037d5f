#include "espalier/cost/kept_tensors.h"

#include "espalier/base/check.h"

namespace espalier {

std::vector<KeptTensors> kept_tensors(const Graph& graph, const OperatorCosts& costs, KindId kind) {
  std::vector<KeptTensors> kept(graph.operators().size());
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const Operator& op = graph.operators()[i];
    for (const SavedTensor& saved : costs.of(OperatorId(i), kind).saved) {
      const bool input = saved.side == SavedTensor::Side::kInput;
      const std::size_t count = input ? op.inputs.size() : op.outputs.size();
      if (saved.index >= count) {
        throw InputError("the cost of '" + op.op_class + "' saves " + (input ? "input " : "output ") +
                         std::to_string(saved.index) + ", but operator '" + op.name + "' has " +
                         std::to_string(count));
      }
      (input ? kept[i].inputs : kept[i].outputs).push_back(saved.index);
    }
  }
  return kept;
}

}  // namespace espalier
