#pragma once

// What a program's operators do to memory, gradients and samples: from the flat program and the operator
// table to the Graph. Internal to the frontend.

#include <string>
#include <vector>

#include "espalier/frontend/program_reader.h"

namespace espalier {

// The graph less its name, outputs' loss and training mode. Per operator: which inputs it writes, storages of
// its outputs, whether a gradient flows, randomness, samples mixed, duplicable, colocation, class.
//
// Colocation: of the tensors that may share a memory which somebody writes, every operator that touches one
// up to the last write stands with the writers, and so does a later reader of a tensor made before that
// write. Readers of what was made since are free: they get the final value.
//
// What an operator does to memory comes from the table of aten operators, else from `schemas`; one that
// neither knows may alias anything it reads, and writes what its name says.
GraphParts derive_graph(const FlatProgram& program, const SchemaTable& schemas);

// Whether an operator that behaves differently in training is present, and in which mode: true if one trains,
// false if all evaluate, nothing if there is none.
std::optional<bool> training_flags(const FlatProgram& program);

}  // namespace espalier
