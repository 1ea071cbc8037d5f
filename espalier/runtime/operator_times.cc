#include "espalier/runtime/operator_times.h"

namespace espalier {

OperatorTimes::OperatorTimes(const Graph& graph, const DeviceClock& clock)
    : clock_(clock), nodes_(graph), forward_(graph.operators().size(), 0.0) {
  starts_.reserve(4 * graph.operators().size());
}

void OperatorTimes::after(OperatorId op, const Tensors& tensors) {
  forward_[op.index()] += nanoseconds_between(last_, clock_.now());
  nodes_.watch(op, tensors, [this, op] { starts_.emplace_back(op, clock_.now()); });
  last_ = clock_.now();  // what the search for nodes took does not count
}

std::vector<double> OperatorTimes::take_backward() {
  const auto end = clock_.now();
  std::vector<double> backward(forward_.size(), 0.0);
  for (std::size_t i = 0; i < starts_.size(); ++i) {
    const auto next = i + 1 < starts_.size() ? starts_[i + 1].second : end;
    backward[starts_[i].first.index()] += nanoseconds_between(starts_[i].second, next);
  }
  starts_.clear();
  return backward;
}

}  // namespace espalier
