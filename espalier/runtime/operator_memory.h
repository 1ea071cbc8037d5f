#pragma once

// What each operator of a stage keeps for backward, and what it needs while it runs, seen in one pass.
// Includes libtorch; runtime/ only.
//
// Which tensors an operator keeps is seen from reference counts: autograd refers to an input as it is, to an
// output by another tensor on its storage. Views refer to what they view without keeping it for backward, so
// those references are taken off. Parameters and constants are there anyway and are not listed.

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "espalier/cost/cost_table.h"
#include "espalier/runtime/backward_nodes.h"
#include "espalier/runtime/memory_meter.h"
#include "espalier/runtime/stage_runner.h"

namespace espalier {

struct OperatorMemory {
  std::vector<SavedTensor> saved;
  Bytes private_bytes;
  Bytes workspace;
};

class MemoryObserver final : public CallObserver {
 public:
  // `meter` counts what the pass allocates.
  MemoryObserver(const Graph& graph, MemoryMeter& meter);

  void before(OperatorId id, const Tensors& tensors) override;
  void after(OperatorId id, const Tensors& tensors) override;
  void end_backward();

  const std::vector<OperatorMemory>& memory() const { return memory_; }  // by operator

 private:
  struct References {  // to a tensor, and to its storage
    std::size_t tensor = 0;
    std::size_t storage = 0;
  };

  void begin();
  void end(OperatorMemory& memory);
  Bytes fresh_bytes(const Operator& op, const Tensors& tensors) const;
  bool keeps_input(const Operator& op, TensorId in, const Tensors& tensors) const;
  bool keeps_output(const Operator& op, TensorId out, const Tensors& tensors) const;

  const Graph& graph_;
  BackwardNodes nodes_;
  MemoryMeter& meter_;
  std::vector<OperatorMemory> memory_;
  std::map<TensorId, References> before_;  // the inputs', before the operator ran
  std::optional<OperatorId> running_;      // in backward
  Bytes live_;                             // before what runs now
};

}  // namespace espalier
