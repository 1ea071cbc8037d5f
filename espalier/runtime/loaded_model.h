#pragma once

// A .pt2 file as a run keeps it: its program, and the file mapped into memory for the weights.

#include <string>
#include <vector>

#include "espalier/frontend/exported_program.h"
#include "espalier/frontend/zip.h"

namespace espalier {

struct LoadedModel {
  // Parameters that match `frozen` are not trained. Throws InputError naming the file and what is wrong with
  // it.
  explicit LoadedModel(const std::string& path, const std::vector<std::string>& frozen = {});

  MappedFile file;  // a stage copies weights out of it when it first needs them
  ExportedProgram exported;
  const Graph& graph() const { return exported.imported.graph; }
};

}  // namespace espalier
