#pragma once

// The model's state from all workers in one place. Includes libtorch; runtime/ only.

#include <ATen/ATen.h>

#include <map>
#include <string>

#include "espalier/runtime/executor.h"
#include "espalier/runtime/workers.h"

namespace espalier {

// Parameters and persistent buffers by name, complete on rank 0. Collective.
std::map<std::string, at::Tensor> gather_state(Workers& workers, const Graph& graph,
                                               const Executor& executor);

// The step's gradients by name, complete on rank 0; zeros where none flowed. Its executor keeps gradients.
// Collective.
std::map<std::string, at::Tensor> gather_gradients(Workers& workers, const Graph& graph,
                                                   const Executor& executor, const StepOutcome& outcome);

// Writes parameters and persistent buffers on rank 0 as safetensors, one after the other: no worker holds
// more than one tensor that is not its own. The metadata has tied names, each further name to the first, as
// the safetensors package does it. Collective.
void save_state(const std::string& path, Workers& workers, const Graph& graph, const Executor& executor);

}  // namespace espalier
