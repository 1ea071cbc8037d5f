#pragma once

// Weights to start from: a safetensors file, or a folder of several with model.safetensors.index.json, as the
// Hugging Face hub has them. Includes libtorch; runtime/ only.
//
// Names are the model's own. Where most names of the file are the model's behind (or without) one prefix
// ("model.", "transformer."), that prefix is taken off (or put before) and told; a name that is there as it
// is comes first. A tied parameter is found by any of its names. Headers are read at once, tensors when a
// holding needs them; other floating-point types are converted and told.

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "espalier/runtime/runtime.h"
#include "espalier/runtime/state_source.h"
#include "espalier/runtime/tensor_file.h"

namespace espalier {

class WeightsFile final : public StateSource {
 public:
  // Throws InputError naming what is missing (ten names and the count), or the tensor of another shape.
  WeightsFile(const std::string& path, const Graph& graph, MissingNames missing);

  bool has(ParameterId id) const override { return places_.contains(id); }
  at::Tensor value(ParameterId id) const override;

  // One line each, the same on every worker: prefix, conversions, names missing and unexpected.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct Place {
    const TensorFile* file = nullptr;
    std::string name;
  };
  void open(const std::string& path);
  void open_index(const std::string& folder, const std::string& index);
  void match(const Graph& graph);
  void note_what_differs(const Graph& graph, MissingNames missing);
  void note_conversions(const Graph& graph);

  std::string path_;
  std::vector<std::unique_ptr<TensorFile>> files_;
  std::map<std::string, const TensorFile*, std::less<>> names_;  // of all files
  std::map<ParameterId, Place> places_;
  std::set<std::string, std::less<>> known_;     // the model's names as the file may call them
  std::map<ParameterId, at::ScalarType> types_;  // the model's
  std::vector<std::string> notes_;
};

}  // namespace espalier
