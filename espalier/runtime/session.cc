#include "espalier/runtime/session.h"

#include "espalier/base/check.h"
#include "espalier/runtime/checkpoint.h"

namespace espalier {

Session::Session(const ExportedProgram& exported, std::string_view archive, Optimizer optimizer,
                 std::uint64_t seed, at::Device device)
    : exported_(&exported), archive_(archive), optimizer_(optimizer), seed_(seed), device_(device) {
  constants_.resize(graph().tensors().size());
  stored_.resize(graph().parameters().size());
  for (const StoredTensor& stored : exported.stored) {
    const Tensor& tensor = graph().tensor(stored.tensor);
    if (!tensor.parameter) {
      constants_[stored.tensor.index()] = load_stored(stored, archive, device);
    } else if (stored_[tensor.parameter->index()] == nullptr) {
      stored_[tensor.parameter->index()] = &stored;
    }
  }
}

void Session::load(const std::string& path) {
  ESP_CHECK(holdings_.empty());
  const std::map<std::string, at::Tensor> file = read_tensors(path);
  for (const Parameter& parameter : graph().parameters()) {
    if (!parameter.persistent) continue;
    const std::string& name = parameter.names[0];
    const auto found = file.find(name);
    if (found == file.end()) throw InputError(path + ": has no tensor '" + name + "', which the model has");
    if (found->second.sizes() != at::IntArrayRef(parameter.sizes) ||
        found->second.scalar_type() != torch_type(parameter.dtype)) {
      throw InputError(path + ": tensor '" + name + "' has another shape or type than in the model");
    }
    loaded_[name] = found->second.to(device_);
  }
}

at::Tensor Session::initial(ParameterId id) const {
  const auto loaded = loaded_.find(graph().parameter(id).names[0]);
  if (loaded != loaded_.end()) return loaded->second.clone();
  const StoredTensor* stored = stored_[id.index()];
  if (stored == nullptr) {
    throw InputError(graph().name() + ": has no values for '" + graph().parameter(id).names[0] + "'");
  }
  return load_stored(*stored, archive_, device_);
}

Holding& Session::holding(StageId stage, DeviceId device, const std::vector<ParameterId>& parameters) {
  const std::lock_guard guard(lock_);
  const auto [place, is_new] = holdings_.try_emplace({stage, device});
  if (is_new) {
    for (const ParameterId id : parameters) {
      Variable variable{id, initial(id), {}};
      if (graph().parameter(id).trainable) {
        variable.value.requires_grad_(true);
        place->second.parameters.push_back(std::move(variable));
      } else {
        place->second.buffers.push_back(std::move(variable));
      }
    }
  }
  return place->second;
}

}  // namespace espalier
