#pragma once

// A program as it is evaluated: dropout off, running statistics in place of the batch's.

#include "espalier/frontend/exported_program.h"

namespace espalier {

// The same graph, with operators that behave differently in training told to evaluate, as model.eval() would
// have exported them: dropout (also within attention) passes everything on, BatchNorm and InstanceNorm use
// the statistics that they keep and leave them alone. Without kept statistics they use the batch's, in
// PyTorch too. What the model's own code does differently in training, and random numbers that it draws
// itself, stay as exported.
ExportedProgram evaluation_program(const ExportedProgram& program);

}  // namespace espalier
