#include "espalier/cost/cpu_kernels.h"

#include <algorithm>

namespace espalier {
namespace {

constexpr std::int64_t kNanosecondsOfANumber = 10;

struct Kernels {
  std::int64_t forward = 1;
  std::int64_t half = 1;  // each half of backward
};

Kernels kernels_of(const OperatorFamily& family) {
  if (family.family == Family::kConvolution) return {.forward = 5, .half = 6};
  if (family.keeps == Keeps::kScores) return {.forward = 8, .half = 10};
  return {};
}

std::int64_t random_numbers(const Graph& graph, const Operator& op, const OperatorFamily& family,
                            BatchSize batch) {
  if (!op.random || op.outputs.empty()) return 0;
  const auto size = [&](const Tensor& tensor, std::size_t from_end) {
    const std::size_t n = tensor.sizes.size();
    return from_end > n ? 1 : std::max<std::int64_t>(1, tensor.sizes[n - from_end].at(batch));
  };
  if (family.keeps == Keeps::kScores && op.inputs.size() >= 2) {
    const Tensor& queries = graph.tensor(op.inputs[0]);
    return queries.elements(batch) / size(queries, 1) * size(graph.tensor(op.inputs[1]), 2);
  }
  const Tensor& out = graph.tensor(op.outputs[0]);
  if (family.keeps == Keeps::kChannelMask) {  // one for each channel of a sample
    const std::size_t n = out.sizes.size();
    return size(out, n) * (n > 1 ? size(out, n - 1) : 1);
  }
  return out.elements(batch);
}

}  // namespace

void add_cpu_kernels(const Graph& graph, const Operator& op, const OperatorFamily& family,
                     const DeviceKind& kind, BatchSize batch, OperatorCost& cost) {
  const Kernels kernels = kernels_of(family);
  const auto add = [&](Duration& time, std::int64_t count) {
    if (time > Duration()) time += (count - 1) * kind.launch_overhead;
  };
  add(cost.forward, kernels.forward);
  add(cost.input_gradient, kernels.half);
  add(cost.weight_gradient, kernels.half);
  cost.forward += Duration(kNanosecondsOfANumber * random_numbers(graph, op, family, batch));
}

}  // namespace espalier
