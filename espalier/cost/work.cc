#include "espalier/cost/work.h"

#include <algorithm>

#include "espalier/cost/analytic.h"

namespace espalier {

std::vector<Weight> work_weights(const Graph& graph, const OperatorCosts& costs, BatchSize batch) {
  const std::size_t n = graph.operators().size();
  std::vector<Weight> weights(n);
  const bool profile = std::any_of(graph.tensors().begin(), graph.tensors().end(),
                                   [](const Tensor& tensor) { return tensor.dtype == DType::kOpaque; });
  if (profile) {
    for (std::size_t i = 0; i < n; ++i) {
      const OperatorCost& cost = costs.of(OperatorId(i), KindId(0));
      weights[i] = Weight((cost.forward + cost.backward()).count());
    }
    return weights;
  }
  constexpr double kPerByte = 10;
  std::vector<double> work(n, 0);
  double all = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const Work w = operator_work(graph, OperatorId(i), batch);
    if (w.free) continue;
    work[i] = std::max(w.forward_flops, kPerByte * (w.bytes_read + w.bytes_written)) +
              std::max(w.input_gradient_flops, kPerByte * w.input_gradient_bytes) +
              std::max(w.weight_gradient_flops, kPerByte * w.weight_gradient_bytes);
    all += work[i];
  }
  double unit = 1;
  while (all / unit > 0x1p60) unit *= 2;
  for (std::size_t i = 0; i < n; ++i) weights[i] = Weight(static_cast<std::int64_t>(work[i] / unit));
  return weights;
}

}  // namespace espalier
