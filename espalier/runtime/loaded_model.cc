#include "espalier/runtime/loaded_model.h"

#include <optional>

#include "espalier/base/check.h"
#include "espalier/runtime/state_source.h"

namespace espalier {

LoadedModel::LoadedModel(const std::string& model, const std::vector<std::string>& frozen)
    : path(model), file(path), exported(read_exported_program(file.bytes(), path, {.frozen = frozen})) {}

const ExportedProgram& LoadedModel::program_with_values(const StateSource* source) const {
  std::string lacking;
  std::size_t count = 0;
  for (const StoredTensor& stored : exported.stored) {
    const std::optional<ParameterId> parameter = graph().tensor(stored.tensor).parameter;
    if (!stored.absent || (source != nullptr && parameter && source->has(*parameter))) continue;
    if (count++ == 0)
      lacking = parameter ? graph().parameter(*parameter).names[0] : graph().tensor(stored.tensor).name;
  }
  if (count == 0) return exported;
  if (source == nullptr) require_weights(exported, path);
  throw InputError(path + ": holds no values of " + std::to_string(count) +
                   " of its tensors, nor does the file that training starts from: '" + lacking +
                   (count > 1 ? "' and others" : "'") +
                   "; make the model with them before the export (buffers are no part of a file of weights)");
}

}  // namespace espalier
