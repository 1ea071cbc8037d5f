#pragma once

// models/model.json and the weight tables of a .pt2 archive, flattened: sub-graphs inlined, sizes as
// expressions in the batch, ties joined. Structure only; tensor_flow.h derives the rest. Internal to the
// frontend.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "espalier/frontend/export_notes.h"
#include "espalier/frontend/exported_program.h"

namespace espalier {

struct FlatTensor {
  std::string name;
  TensorRole role = TensorRole::kActivation;
  DType dtype = DType::kF32;
  std::vector<SizeExpr> sizes;
  std::vector<SizeExpr> strides;
  bool trainable = false;  // a parameter that is not frozen
  std::optional<ParameterId> parameter;
};

struct FlatNode {
  std::string name;
  Call call;
  std::string module_path;
  std::string source;
};

// One argument of the model, a tensor or (none) a constant that the export has baked in.
struct FlatInput {
  std::string name;
  std::optional<TensorId> tensor;
};

struct FlatProgram {
  BatchRange batch;
  std::vector<FlatTensor> tensors;  // inputs of the graph first, in signature order, then by producing node
  std::vector<Parameter> parameters;
  std::vector<StoredTensor> stored;
  std::vector<FlatInput> inputs;
  std::vector<FlatNode> nodes;
  std::vector<TensorId> outputs;
  std::vector<std::string> output_names;  // of each, in the program
  std::optional<TensorId> declared_loss;  // an output that the file itself calls the loss
};

// `model` is models/<model_name>.json. Throws InputError naming `name`, the node, and its source line.
FlatProgram read_program(const nlohmann::ordered_json& model, const std::string& model_name,
                         const ZipReader& archive, const std::string& name, const ExportNotes& notes);

}  // namespace espalier
