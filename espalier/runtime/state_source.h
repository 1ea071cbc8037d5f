#pragma once

// Where the values come from that training starts with, other than the model's archive: a file of weights
// (weights_file.h) or a checkpoint (checkpoint.h). Includes libtorch; runtime/ only.

#include <ATen/ATen.h>

#include <vector>

#include "espalier/base/ids.h"
#include "espalier/graph/graph.h"

namespace espalier {

class StateSource {
 public:
  virtual ~StateSource() = default;

  // It has a value of its own for this one; reads no bytes of it.
  virtual bool has(ParameterId id) const = 0;

  // In host memory, of the model's shape and type; undefined where the archive's value is to be taken.
  // Thread-safe, as all of this.
  virtual at::Tensor value(ParameterId id) const = 0;

  // What the optimizer keeps of it, in its order; empty before the first update.
  virtual std::vector<at::Tensor> state(ParameterId) const { return {}; }
};

}  // namespace espalier
