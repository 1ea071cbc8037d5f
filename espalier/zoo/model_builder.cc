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

TensorId ModelBuilder::stored(const std::string& name, std::vector<std::int64_t> sizes, DType dtype,
                              TensorRole role) {
  const bool trainable = role == TensorRole::kParameter;
  Tensor tensor{.name = name, .role = role, .dtype = dtype, .requires_grad = trainable};
  tensor.sizes.assign(sizes.begin(), sizes.end());
  tensor.parameter = ParameterId(parts_.parameters.size());
  parts_.parameters.push_back(
      {.names = {name}, .trainable = trainable, .dtype = dtype, .sizes = std::move(sizes)});
  return source(std::move(tensor));
}

TensorId ModelBuilder::parameter(const std::string& name, std::vector<std::int64_t> sizes) {
  for (const auto& [module, of] : shared_modules_) {
    if (name.starts_with(module)) return parameters_.at(of + name.substr(module.size()));
  }
  const TensorId made = stored(name, std::move(sizes), DType::kF32, TensorRole::kParameter);
  parameters_.emplace(name, made);
  return made;
}

void ModelBuilder::share_parameters(std::string module, std::string of) {
  shared_modules_.emplace_back(std::move(module) + ".", std::move(of) + ".");
}

TensorId ModelBuilder::detach(const std::string& name, TensorId x) {
  const TensorId same = view(name, "aten.detach.default", x, sizes(x));
  parts_.tensors[same.index()].requires_grad = false;
  return same;
}

TensorId ModelBuilder::buffer(const std::string& name, std::vector<std::int64_t> sizes, DType dtype) {
  return stored(name, std::move(sizes), dtype, TensorRole::kBuffer);
}

std::vector<TensorId> ModelBuilder::append(Operator op, const std::vector<DType>& outputs, const Sizes& sizes,
                                           Memory memory) {
  op.module_path = module_path_;
  op.name = full_name(op.name);
  ESP_CHECK(names_.insert(op.name).second, op.name);
  const bool gradient = std::any_of(op.inputs.begin(), op.inputs.end(),
                                    [&](TensorId id) { return parts_.tensors[id.index()].requires_grad; });
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    Tensor tensor{.name = op.name, .dtype = outputs[i], .sizes = sizes};
    tensor.requires_grad = gradient && is_floating_point(outputs[i]);
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
  const std::vector<DType> types(outputs, type_of(inputs[0]));
  Operator op{.name = name, .target = std::string(target), .inputs = std::move(inputs)};
  return append(std::move(op), types, sizes, memory);
}

TensorId ModelBuilder::add(const std::string& name, std::string_view target, std::vector<TensorId> inputs,
                           Sizes sizes, Memory memory) {
  return add_several(name, target, std::move(inputs), 1, std::move(sizes), memory).front();
}

TensorId ModelBuilder::mix(const std::string& name, std::string_view target, std::vector<TensorId> inputs,
                           Sizes sizes) {
  const DType dtype = type_of(inputs[0]);
  Operator op{
      .name = name, .target = std::string(target), .inputs = std::move(inputs), .mixes_samples = true};
  return append(std::move(op), {dtype}, sizes, Memory::kOwn).front();
}

TensorId ModelBuilder::concat(const std::string& name, std::vector<TensorId> parts, std::size_t dimension) {
  Sizes all = sizes(parts[0]);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    all[dimension] = all[dimension] + sizes(parts[i])[dimension];
  }
  return add(name, "aten.cat.default", std::move(parts), std::move(all));
}

TensorId ModelBuilder::look_up(const std::string& name, TensorId table, TensorId indices) {
  Sizes out = sizes(indices);
  out.push_back(sizes(table).back());
  return add(name, "aten.embedding.default", {table, indices}, std::move(out));
}

TensorId ModelBuilder::generate(const std::string& name, std::string_view target, Sizes sizes, DType dtype) {
  Operator op{.name = name, .target = std::string(target), .duplicable = true};
  return append(std::move(op), {dtype}, sizes, Memory::kOwn).front();
}

TensorId ModelBuilder::derive(const std::string& name, std::string_view target, std::vector<TensorId> inputs,
                              Sizes sizes, Memory memory) {
  const DType dtype = type_of(inputs[0]);
  Operator op{.name = name, .target = std::string(target), .inputs = std::move(inputs), .duplicable = true};
  return append(std::move(op), {dtype}, sizes, memory).front();
}

TensorId ModelBuilder::random(const std::string& name, std::string_view target, TensorId input) {
  Operator op{.name = name, .target = std::string(target), .inputs = {input}, .random = true};
  return append(std::move(op), {DType::kF32}, Sizes(sizes(input)), Memory::kOwn).front();
}

std::pair<TensorId, TensorId> ModelBuilder::top(const std::string& name, TensorId x, std::int64_t count) {
  Sizes best = sizes(x);
  best.back() = count;
  Operator op{.name = name, .target = "aten.topk.default", .inputs = {x}};
  const std::vector<TensorId> found = append(std::move(op), {type_of(x), DType::kI64}, best, Memory::kOwn);
  return {found[0], found[1]};
}

std::int64_t ModelBuilder::size(TensorId id, std::ptrdiff_t dimension) const {
  const Sizes& all = sizes(id);
  if (dimension < 0) dimension += static_cast<std::ptrdiff_t>(all.size());
  const std::optional<std::int64_t> known = all[static_cast<std::size_t>(dimension)].constant();
  ESP_CHECK(known.has_value(), parts_.tensors[id.index()].name, dimension);
  return *known;
}

TensorId ModelBuilder::batch_norm(const std::string& name, TensorId x) {
  const std::int64_t channels = size(x, 1);
  const auto scope = inside(name);
  const TensorId weight = parameter(full_name("weight"), {channels});
  const TensorId bias = parameter(full_name("bias"), {channels});
  const TensorId mean = buffer(full_name("running_mean"), {channels});
  const TensorId variance = buffer(full_name("running_var"), {channels});
  const TensorId calls = buffer(full_name("num_batches_tracked"), {}, DType::kI64);
  append({.name = "count", .target = "aten.add_.Tensor", .inputs = {calls}, .mutates = {calls}},
         {DType::kI64}, {}, Memory::kView);
  Operator op{.name = "norm",
              .target = "aten.batch_norm.default",
              .inputs = {x, weight, bias, mean, variance},
              .mutates = {mean, variance},
              .mixes_samples = true};
  return append(std::move(op), {type_of(x)}, Sizes(sizes(x)), Memory::kOwn).front();
}

Graph ModelBuilder::finish(TensorId loss) {
  parts_.outputs = {loss};
  parts_.loss = loss;
  return Graph(with_colocation(std::move(parts_)));
}

void expect_sizes(const std::string& model, std::initializer_list<std::int64_t> sizes) {
  if (std::min(sizes) < 1) throw InputError(model + ": every size is at least 1");
}

void expect_heads(const std::string& model, std::int64_t heads, std::int64_t hidden) {
  if (hidden % heads == 0) return;
  throw InputError(model + ": " + std::to_string(heads) + " heads do not divide the hidden size " +
                   std::to_string(hidden));
}

}  // namespace espalier
