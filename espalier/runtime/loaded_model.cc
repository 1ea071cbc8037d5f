#include "espalier/runtime/loaded_model.h"

namespace espalier {

LoadedModel::LoadedModel(const std::string& path, const std::vector<std::string>& frozen)
    : file(path), exported(read_exported_program(file.bytes(), path, {.frozen = frozen})) {
  require_weights(exported, path);
}

}  // namespace espalier
