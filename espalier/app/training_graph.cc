#include "espalier/app/training_graph.h"

#include "espalier/cost/kept_tensors.h"

namespace espalier {

Graph training_graph(const Graph& forward) {
  const Cluster accelerator = parse_cluster("1xA100-80GB");
  const BatchSize batch = forward.batch().min;
  const CostTable costs =
      complete_costs(forward, accelerator, CostTable(CostTableParts{}), std::span(&batch, 1));
  const OperatorCosts at(forward, accelerator, costs, batch);
  return expand_backward(forward, {.kept = kept_tensors(forward, at, KindId(0))});
}

}  // namespace espalier
