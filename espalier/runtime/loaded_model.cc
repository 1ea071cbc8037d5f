#include "espalier/runtime/loaded_model.h"

namespace espalier {

LoadedModel::LoadedModel(const std::string& path)
    : file(path), exported(read_exported_program(file.bytes(), path)) {
  require_weights(exported, path);
}

}  // namespace espalier
