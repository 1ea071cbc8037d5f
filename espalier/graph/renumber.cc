#include "espalier/graph/renumber.h"

#include <optional>
#include <utility>
#include <vector>

#include "espalier/base/check.h"

namespace espalier {

Graph renumbered(const Graph& graph, std::span<const OperatorId> order) {
  const std::size_t operators = graph.operators().size(), tensors = graph.tensors().size();
  ESP_CHECK(order.size() == operators, order.size(), operators);
  std::vector<std::optional<OperatorId>> new_operator(operators);
  for (std::size_t i = 0; i < operators; ++i) {
    std::optional<OperatorId>& place = new_operator[order[i].index()];
    ESP_CHECK(!place, order[i]);
    place = OperatorId(i);
    for (const OperatorId before : graph.predecessors(order[i])) {
      ESP_CHECK(new_operator[before.index()].has_value(), before, order[i]);
    }
  }

  std::vector<TensorId> old_tensors;
  old_tensors.reserve(tensors);
  for (std::size_t t = 0; t < tensors; ++t) {
    if (!graph.tensors()[t].producer) old_tensors.push_back(TensorId(t));
  }
  for (const OperatorId op : order) {
    old_tensors.insert(old_tensors.end(), graph.op(op).outputs.begin(), graph.op(op).outputs.end());
  }
  std::vector<TensorId> new_tensor(tensors);
  for (std::size_t t = 0; t < tensors; ++t) new_tensor[old_tensors[t].index()] = TensorId(t);
  const auto rename = [&](std::vector<TensorId>& ids) {
    for (TensorId& id : ids) id = new_tensor[id.index()];
  };

  GraphParts parts;
  parts.name = graph.name();
  parts.batch = graph.batch();
  parts.training_mode = graph.training_mode();
  parts.parameters.assign(graph.parameters().begin(), graph.parameters().end());
  parts.operators.reserve(operators);
  for (const OperatorId old : order) {
    Operator op = graph.op(old);
    rename(op.inputs);
    rename(op.outputs);
    rename(op.mutates);
    parts.operators.push_back(std::move(op));
  }
  parts.tensors.reserve(tensors);
  std::vector<std::optional<StorageId>> new_storage(graph.storage_count());
  std::size_t storages = 0;
  for (const TensorId old : old_tensors) {
    Tensor tensor = graph.tensor(old);
    std::optional<StorageId>& storage = new_storage[tensor.storage.index()];
    if (!storage) storage = StorageId(storages++);
    tensor.storage = *storage;
    if (tensor.producer) tensor.producer = new_operator[tensor.producer->index()];
    if (tensor.gradient_of) tensor.gradient_of = new_tensor[tensor.gradient_of->index()];
    parts.tensors.push_back(std::move(tensor));
  }
  parts.outputs.assign(graph.outputs().begin(), graph.outputs().end());
  rename(parts.outputs);
  if (graph.loss()) parts.loss = new_tensor[graph.loss()->index()];
  return Graph(std::move(parts));
}

}  // namespace espalier
