#pragma once

// Writes down a forward graph operator by operator, as an export of PyTorch would hold it: sizes, views,
// parameters, what requires a gradient. No weights, nothing to run.

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "espalier/graph/graph.h"

namespace espalier {

class ModelBuilder {
 public:
  using Sizes = std::vector<SizeExpr>;

  ModelBuilder(std::string name, BatchRange batch);

  TensorId input(const std::string& name, Sizes sizes, DType dtype = DType::kF32);
  TensorId parameter(const std::string& name, std::vector<std::int64_t> sizes);

  // Operators after this one stand in that module: "encoder.layers.0". Their names begin with it.
  void enter(std::string module_path) { module_path_ = std::move(module_path); }

  enum class Memory : std::uint8_t { kOwn, kView };  // of the outputs: their own, or the first input's
  // An operator "module.name", which no other has, with one output of its first input's type.
  TensorId add(const std::string& name, std::string_view target, std::vector<TensorId> inputs, Sizes sizes,
               Memory memory = Memory::kOwn);
  std::vector<TensorId> add_several(const std::string& name, std::string_view target,
                                    std::vector<TensorId> inputs, std::size_t outputs, Sizes sizes,
                                    Memory memory = Memory::kOwn);
  TensorId look_up(const std::string& name, TensorId table, TensorId indices);  // an embedding
  // Without inputs, f32: each stage makes its own (duplicable).
  TensorId generate(const std::string& name, std::string_view target, Sizes sizes);
  TensorId random(const std::string& name, std::string_view target, TensorId input);  // such as dropout

  const Sizes& sizes(TensorId id) const { return parts_.tensors[id.index()].sizes; }

  // With one output, the loss.
  Graph finish(TensorId loss);

 private:
  std::vector<TensorId> append(Operator op, std::size_t outputs, const Sizes& sizes, DType dtype,
                               Memory memory);
  TensorId source(Tensor tensor);

  GraphParts parts_;
  std::string module_path_;
  std::unordered_set<std::string> names_;  // of operators
  std::size_t storages_ = 0;
};

}  // namespace espalier
