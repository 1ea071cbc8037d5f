#pragma once

// What an evaluation keeps of the model's outputs: sums. Includes libtorch; runtime/ only.

#include <cstdint>
#include <vector>

#include "espalier/runtime/stage_runner.h"

namespace espalier {

// One output in one micro-batch.
struct OutputSum {
  std::size_t output = 0;  // index into Graph::outputs
  bool is_scalar = false;
  double total = 0;  // over its elements
  double elements = 0;
};

// Appends one for each of the graph's outputs that a stage makes.
class OutputSummer final : public CallObserver {
 public:
  OutputSummer(const Graph& graph, std::vector<OutputSum>& sums) : graph_(graph), sums_(sums) {}

  void after(OperatorId op, const Tensors& tensors) override;

 private:
  const Graph& graph_;
  std::vector<OutputSum>& sums_;
};

}  // namespace espalier
