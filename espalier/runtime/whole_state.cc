#include "espalier/runtime/whole_state.h"

#include <optional>
#include <vector>

#include "espalier/base/safetensors.h"
#include "espalier/runtime/tensor_file.h"

namespace espalier {

std::map<std::string, at::Tensor> gather_state(Workers& workers, const Graph& graph,
                                               const Executor& executor) {
  std::map<std::string, at::Tensor> state;
  for (std::size_t p = 0; p < graph.parameters().size(); ++p) {
    const Parameter& parameter = graph.parameters()[p];
    if (!parameter.persistent) continue;
    const at::Tensor mine = executor.owned(ParameterId(p));
    const auto owner = executor.owner(ParameterId(p));
    const at::Tensor value =
        owner ? fetch(workers, *owner, mine, torch_type(parameter.dtype), parameter.sizes) : mine;
    if (workers.transport->rank() == 0) state[parameter.names[0]] = value;
  }
  return state;
}

std::map<std::string, at::Tensor> gather_gradients(Workers& workers, const Graph& graph,
                                                   const Executor& executor, const StepOutcome& outcome) {
  std::map<std::string, at::Tensor> gradients;
  for (std::size_t p = 0; p < graph.parameters().size(); ++p) {
    const Parameter& parameter = graph.parameters()[p];
    const auto owner = executor.owner(ParameterId(p));
    if (!parameter.trainable || !owner) continue;
    const auto found = outcome.gradients.find(ParameterId(p));
    const at::ScalarType type = torch_type(parameter.dtype);
    const at::Tensor mine =
        found != outcome.gradients.end() ? found->second.cpu() : at::zeros(parameter.sizes, type);
    const at::Tensor gradient = fetch(workers, *owner, mine, type, parameter.sizes);
    if (workers.transport->rank() == 0) gradients[parameter.names[0]] = gradient;
  }
  return gradients;
}

void save_state(const std::string& path, Workers& workers, const Graph& graph, const Executor& executor) {
  std::map<std::string, ParameterId> by_name;
  for (std::size_t p = 0; p < graph.parameters().size(); ++p) {
    if (graph.parameters()[p].persistent) by_name[graph.parameters()[p].names[0]] = ParameterId(p);
  }
  std::optional<Busy> busy;
  std::optional<SafetensorsWriter> writer;
  if (workers.transport->rank() == 0) {
    busy.emplace(workers.watchdog.get(), "saving " + path);
    std::vector<SafetensorsWriter::Entry> entries;
    std::map<std::string, std::string> metadata{{"format", "pt"}};
    for (const auto& [name, id] : by_name) {
      const Parameter& parameter = graph.parameter(id);
      entries.push_back({name,
                         safetensors_type(torch_type(parameter.dtype), path + ": tensor '" + name + "'"),
                         parameter.sizes});
      for (std::size_t i = 1; i < parameter.names.size(); ++i) metadata[parameter.names[i]] = name;
    }
    writer.emplace(path, entries, SafetensorsMetadata(metadata.begin(), metadata.end()));
  }
  for (const auto& [name, id] : by_name) {
    const Parameter& parameter = graph.parameter(id);
    const auto owner = executor.owner(id);
    if (!owner && !writer) continue;
    const at::Tensor mine = executor.owned(id);
    const at::Tensor value =
        owner ? fetch(workers, *owner, mine, torch_type(parameter.dtype), parameter.sizes) : mine;
    if (writer) writer->write(raw_bytes(value.cpu().contiguous()));
  }
  if (writer) writer->finish();
}

}  // namespace espalier
