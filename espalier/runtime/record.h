#pragma once

// What somebody else needs to check a run without any of our code: what each step was given and what came
// out. `python/espalier_parity.py` computes the same in PyTorch. Includes libtorch; runtime/ only.

#include <string>

#include "espalier/runtime/trainer.h"

namespace espalier {

// Writes <folder>/step<k>.safetensors on rank 0 (docs/formats.md): the batch of step k, its gradients as the
// update takes them, parameters and persistent buffers after it. Makes the folder where there is none. Its
// executor keeps gradients. Throws InputError where it cannot write. Collective.
void record_step(const std::string& folder, Workers& workers, const ExportedProgram& exported,
                 const DataSource& data, const Executor& executor, const TimedStep& step);

}  // namespace espalier
