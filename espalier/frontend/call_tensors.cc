#include "espalier/frontend/call_tensors.h"

#include <algorithm>

namespace espalier {

bool among(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

const Argument* argument_of(const Call& call, std::string_view name) {
  const auto found = std::find_if(call.arguments.begin(), call.arguments.end(),
                                  [&](const Argument& argument) { return argument.name == name; });
  return found == call.arguments.end() ? nullptr : &*found;
}

std::vector<TensorId> tensors_read(const Call& call) {
  std::vector<TensorId> result;
  for (const Argument& argument : call.arguments) {
    if (const TensorId* const one = std::get_if<TensorId>(&argument.value)) result.push_back(*one);
    if (const auto* const several = std::get_if<std::vector<OptionalTensor>>(&argument.value)) {
      for (const OptionalTensor& tensor : *several) {
        if (tensor) result.push_back(*tensor);
      }
    }
  }
  return result;
}

std::vector<TensorId> tensors_written(const Call& call) {
  std::vector<TensorId> result;
  for (const Call::Output& output : call.outputs) {
    for (const OptionalTensor& tensor : output.tensors) {
      if (tensor) result.push_back(*tensor);
    }
  }
  return result;
}

}  // namespace espalier
