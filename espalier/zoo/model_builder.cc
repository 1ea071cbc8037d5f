#include "espalier/zoo/model_builder.h"

#include <algorithm>
#include <utility>

#include "espalier/base/check.h"

namespace espalier {

ModelBuilder::ModelBuilder(std::string name, BatchRange batch) {
  parts_.name = std::move(name);
  parts_.batch = batch;
}

TensorId ModelBuilder::source(Tensor tensor) {
  tensor.storage = StorageId(storages_++);
  parts_.tensors.push_back(std::move(tensor));
  return TensorId(parts_.tensors.size() - 1);
}

TensorId ModelBuilder::input(const std::string& name, Sizes sizes, DType dtype) {
  return source({.name = name, .role = TensorRole::kInput, .dtype = dtype, .sizes = std::move(sizes)});
}

TensorId ModelBuilder::parameter(const std::string& name, std::vector<std::int64_t> sizes) {
  Tensor tensor{.name = name, .role = TensorRole::kParameter, .requires_grad = true};
  tensor.sizes.assign(sizes.begin(), sizes.end());
  tensor.parameter = ParameterId(parts_.parameters.size());
  parts_.parameters.push_back({.names = {name}, .sizes = std::move(sizes)});
  return source(std::move(tensor));
}

std::vector<TensorId> ModelBuilder::append(Operator op, std::size_t outputs, const Sizes& sizes, DType dtype,
                                           Memory memory) {
  op.module_path = module_path_;
  if (!module_path_.empty()) op.name = module_path_ + "." + op.name;
  ESP_CHECK(names_.insert(op.name).second, op.name);
  const bool gradient = is_floating_point(dtype) &&
                        std::any_of(op.inputs.begin(), op.inputs.end(),
                                    [&](TensorId id) { return parts_.tensors[id.index()].requires_grad; });
  for (std::size_t i = 0; i < outputs; ++i) {
    Tensor tensor{.name = op.name, .dtype = dtype, .sizes = sizes, .requires_grad = gradient};
    if (i > 0) tensor.name += "." + std::to_string(i);
    tensor.producer = OperatorId(parts_.operators.size());
    tensor.storage =
        memory == Memory::kView ? parts_.tensors[op.inputs[0].index()].storage : StorageId(storages_++);
    op.outputs.emplace_back(parts_.tensors.size());
    parts_.tensors.push_back(std::move(tensor));
  }
  op.op_class = default_op_class(op, parts_.tensors);
  std::vector<TensorId> result = op.outputs;
  parts_.operators.push_back(std::move(op));
  return result;
}

std::vector<TensorId> ModelBuilder::add_several(const std::string& name, std::string_view target,
                                                std::vector<TensorId> inputs, std::size_t outputs,
                                                Sizes sizes, Memory memory) {
  const DType dtype = parts_.tensors[inputs[0].index()].dtype;
  Operator op{.name = name, .target = std::string(target), .inputs = std::move(inputs)};
  return append(std::move(op), outputs, sizes, dtype, memory);
}

TensorId ModelBuilder::add(const std::string& name, std::string_view target, std::vector<TensorId> inputs,
                           Sizes sizes, Memory memory) {
  return add_several(name, target, std::move(inputs), 1, std::move(sizes), memory).front();
}

TensorId ModelBuilder::look_up(const std::string& name, TensorId table, TensorId indices) {
  Sizes out = sizes(indices);
  out.push_back(sizes(table).back());
  return add(name, "aten.embedding.default", {table, indices}, std::move(out));
}

TensorId ModelBuilder::generate(const std::string& name, std::string_view target, Sizes sizes) {
  Operator op{.name = name, .target = std::string(target), .duplicable = true};
  return append(std::move(op), 1, sizes, DType::kF32, Memory::kOwn).front();
}

TensorId ModelBuilder::random(const std::string& name, std::string_view target, TensorId input) {
  Operator op{.name = name, .target = std::string(target), .inputs = {input}, .random = true};
  return append(std::move(op), 1, Sizes(sizes(input)), DType::kF32, Memory::kOwn).front();
}

Graph ModelBuilder::finish(TensorId loss) {
  parts_.outputs = {loss};
  parts_.loss = loss;
  return Graph(std::move(parts_));
}

}  // namespace espalier
