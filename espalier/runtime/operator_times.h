#pragma once

// The time of each operator in one pass of a stage. Includes libtorch; runtime/ only.
//
// Forward: a timestamp after each operator. Backward, or each of its halves: what lies between the starts of
// two nodes belongs to the operator of the first, the engine's own work and the accumulation of gradients
// included.

#include <utility>
#include <vector>

#include "espalier/runtime/backward_nodes.h"
#include "espalier/runtime/stage_runner.h"
#include "espalier/runtime/torch_device.h"

namespace espalier {

class OperatorTimes final : public CallObserver {
 public:
  OperatorTimes(const Graph& graph, const DeviceClock& clock);

  void begin_forward() { last_ = clock_.now(); }
  void after(OperatorId op, const Tensors& tensors) override;

  // By operator, in nanoseconds.
  const std::vector<double>& forward() const { return forward_; }
  // Of what ran backward since the last call, and ends now.
  std::vector<double> take_backward();

 private:
  const DeviceClock& clock_;
  BackwardNodes nodes_;
  Clock::time_point last_;
  std::vector<double> forward_;
  std::vector<std::pair<OperatorId, Clock::time_point>> starts_;
};

}  // namespace espalier
