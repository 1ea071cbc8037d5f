#pragma once

// A .pt2 file as a run keeps it: its program, and the file mapped into memory for the weights.

#include <string>
#include <vector>

#include "espalier/frontend/exported_program.h"
#include "espalier/frontend/zip.h"

namespace espalier {

class StateSource;

struct LoadedModel {
  // Parameters that match `frozen` are not trained. Throws InputError naming the file and what is wrong with
  // it. A file without weights is read; who computes asks for program_with_values.
  explicit LoadedModel(const std::string& model, const std::vector<std::string>& frozen = {});

  // The program, if the file or `source` (which may be null) has the values of all tensors. Throws InputError
  // that names a tensor without values and says how to get them.
  const ExportedProgram& program_with_values(const StateSource* source) const;

  std::string path;
  MappedFile file;  // a stage copies weights out of it when it first needs them
  ExportedProgram exported;
  const Graph& graph() const { return exported.imported.graph; }
};

}  // namespace espalier
