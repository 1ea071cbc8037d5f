#pragma once

// What a model's paper counts: parameters, matrix work, operators of a kind.

#include <string_view>

#include "espalier/cost/analytic.h"
#include "espalier/graph/graph.h"

namespace espalier::testing {

// Elements of all trained parameters.
inline std::int64_t trained_parameters(const Graph& graph) {
  std::int64_t sum = 0;
  for (const Parameter& parameter : graph.parameters()) {
    if (parameter.trainable) sum += parameter.elements();
  }
  return sum;
}

// Flops of matrix work and convolutions, forward.
inline double matrix_flops(const Graph& graph, BatchSize batch) {
  double sum = 0;
  for (std::size_t i = 0; i < graph.operators().size(); ++i) {
    const Work work = operator_work(graph, OperatorId(i), batch);
    if (work.matrix) sum += work.forward_flops;
  }
  return sum;
}

inline std::size_t count_operators(const Graph& graph, std::string_view target) {
  std::size_t found = 0;
  for (const Operator& op : graph.operators()) found += op.target == target ? 1 : 0;
  return found;
}

}  // namespace espalier::testing
