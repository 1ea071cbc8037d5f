// Calling operators by name. The boxed dispatcher takes a stack of values, one per argument of the operator's
// schema; it does what Python's torch.ops does. Four things are particular to exported programs:
// - arguments at their default are left out, so arguments are matched by name;
// - a plain number may stand where the schema says Tensor; it then becomes a "wrapped number", which does not
//   take part in type promotion (Float + 2.5 stays Float);
// - ScalarType, Layout and MemoryFormat travel as numbers of c10's own enumerations;
// - the device of factory operators is the one of export time and is replaced;
// - sparse gradients of embeddings are made dense: sums, messages and optimizers here are of dense tensors.

#include "espalier/runtime/program.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <cstring>
#include <mutex>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/runtime/blame.h"

namespace espalier {
namespace {

// One for the program: the default generator is global as well.
std::mutex& random_lock() {
  static std::mutex lock;
  return lock;
}

// Seeds torch's default generators, and gives them back as they were: a program that links this library draws
// the numbers that it would have drawn without it.
class SeededGenerators {
 public:
  SeededGenerators(at::Device device, std::uint64_t seed) {
    keep(at::kCPU);
    if (!device.is_cpu()) keep(device);
    at::manual_seed(seed);
  }
  SeededGenerators(const SeededGenerators&) = delete;
  SeededGenerators& operator=(const SeededGenerators&) = delete;
  ~SeededGenerators() {
    for (auto& [generator, state] : kept_) {
      const std::lock_guard guard(generator.mutex());
      generator.set_state(state);
    }
  }

 private:
  void keep(at::Device device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard guard(generator.mutex());
    kept_.emplace_back(generator, generator.get_state());
  }
  std::vector<std::pair<at::Generator, at::Tensor>> kept_;
};

std::int64_t memory_format(MemoryFormatArgument format) {
  switch (format) {
    case MemoryFormatArgument::kContiguous:
      return static_cast<std::int64_t>(at::MemoryFormat::Contiguous);
    case MemoryFormatArgument::kPreserve:
      return static_cast<std::int64_t>(at::MemoryFormat::Preserve);
    case MemoryFormatArgument::kChannelsLast:
      return static_cast<std::int64_t>(at::MemoryFormat::ChannelsLast);
    case MemoryFormatArgument::kChannelsLast3d:
      return static_cast<std::int64_t>(at::MemoryFormat::ChannelsLast3d);
  }
  return 0;
}

at::Tensor wrapped_number(const at::Scalar& value) {
  at::Tensor tensor = at::scalar_tensor(value, at::TensorOptions(value.type()));
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

// A type without its Optional; and whether an element type takes sizes.
c10::TypePtr inner(c10::TypePtr type) {
  while (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type;
}

// A constant argument at the micro-batch, converted to what the schema asks for; none where it cannot be.
class Converter {
 public:
  Converter(const c10::Argument& formal, BatchSize batch, at::Device device)
      : type_(inner(formal.type())), formal_(&formal), batch_(batch), device_(device) {}

  using Result = std::optional<c10::IValue>;

  Result operator()(const NoArgument&) const { return c10::IValue(); }
  Result operator()(const DeviceArgument&) const { return c10::IValue(device_); }
  Result operator()(const std::string& value) const { return c10::IValue(value); }
  Result operator()(DType value) const { return c10::IValue(static_cast<std::int64_t>(torch_type(value))); }
  Result operator()(LayoutArgument) const {
    return c10::IValue(static_cast<std::int64_t>(at::Layout::Strided));
  }
  Result operator()(MemoryFormatArgument value) const { return c10::IValue(memory_format(value)); }
  Result operator()(const SizeExpr& value) const { return integer(value.at(batch_)); }
  Result operator()(double value) const {
    if (is(c10::TypeKind::TensorType)) return c10::IValue(wrapped_number(value));
    if (is(c10::TypeKind::FloatType) || is(c10::TypeKind::NumberType)) return c10::IValue(value);
    if (element(c10::TypeKind::FloatType)) return c10::IValue(std::vector<double>(repeated(), value));
    return std::nullopt;
  }
  Result operator()(bool value) const {
    if (is(c10::TypeKind::TensorType)) return c10::IValue(wrapped_number(value));
    if (is(c10::TypeKind::BoolType) || is(c10::TypeKind::NumberType)) return c10::IValue(value);
    if (is(c10::TypeKind::IntType)) return c10::IValue(static_cast<std::int64_t>(value));
    return std::nullopt;
  }
  Result operator()(const std::vector<SizeExpr>& values) const {
    if (element(c10::TypeKind::FloatType)) {
      std::vector<double> numbers;
      for (const SizeExpr& value : values) numbers.push_back(static_cast<double>(value.at(batch_)));
      return c10::IValue(std::move(numbers));
    }
    std::vector<std::int64_t> sizes;
    for (const SizeExpr& value : values) sizes.push_back(value.at(batch_));
    return c10::IValue(std::move(sizes));
  }
  Result operator()(const std::vector<double>& values) const { return c10::IValue(values); }
  Result operator()(const std::vector<bool>& values) const {
    c10::List<bool> list;
    for (const bool value : values) list.push_back(value);
    return c10::IValue(std::move(list));
  }
  Result operator()(TensorId) const { return std::nullopt; }
  Result operator()(const std::vector<OptionalTensor>&) const { return std::nullopt; }

 private:
  bool is(c10::TypeKind kind) const { return type_->kind() == kind; }
  bool element(c10::TypeKind kind) const {
    const auto list = type_->cast<c10::ListType>();
    return list && list->getElementType()->kind() == kind;
  }
  std::size_t repeated() const { return static_cast<std::size_t>(formal_->N().value_or(1)); }

  Result integer(std::int64_t value) const {
    if (is(c10::TypeKind::TensorType)) return c10::IValue(wrapped_number(value));
    if (is(c10::TypeKind::FloatType)) return c10::IValue(static_cast<double>(value));
    if (is(c10::TypeKind::BoolType)) return c10::IValue(value != 0);
    if (element(c10::TypeKind::IntType) || element(c10::TypeKind::SymIntType)) {
      return c10::IValue(std::vector<std::int64_t>(repeated(), value));
    }
    if (is(c10::TypeKind::ListType)) return std::nullopt;
    return c10::IValue(value);
  }

  c10::TypePtr type_;
  const c10::Argument* formal_;
  BatchSize batch_;
  at::Device device_;
};

// torch.autocast around one call, on the device that it runs on; nothing for a call outside such regions.
// Without the cache of casts: torch.export writes regions that have it off, and it would outlive the update
// of a weight.
class AutocastGuard {
 public:
  AutocastGuard(std::optional<DType> type, at::Device device) : device_(device.type()) {
    if (!type) return;
    before_ = Before{at::autocast::is_autocast_enabled(device_), at::autocast::get_autocast_dtype(device_),
                     at::autocast::is_autocast_cache_enabled()};
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, torch_type(*type));
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~AutocastGuard() {
    if (!before_) return;
    at::autocast::set_autocast_enabled(device_, before_->enabled);
    at::autocast::set_autocast_dtype(device_, before_->type);
    at::autocast::set_autocast_cache_enabled(before_->cache);
  }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  struct Before {
    bool enabled;
    at::ScalarType type;
    bool cache;
  };
  at::DeviceType device_;
  std::optional<Before> before_;
};

}  // namespace

at::ScalarType torch_type(DType dtype) {
  switch (dtype) {
    case DType::kU8:
      return at::kByte;
    case DType::kI8:
      return at::kChar;
    case DType::kI16:
      return at::kShort;
    case DType::kI32:
      return at::kInt;
    case DType::kI64:
      return at::kLong;
    case DType::kF16:
      return at::kHalf;
    case DType::kF32:
      return at::kFloat;
    case DType::kF64:
      return at::kDouble;
    case DType::kBF16:
      return at::kBFloat16;
    case DType::kBool:
      return at::kBool;
    case DType::kC32:
      return at::kComplexHalf;
    case DType::kC64:
      return at::kComplexFloat;
    case DType::kC128:
      return at::kComplexDouble;
    case DType::kU16:
      return at::kUInt16;
    case DType::kU32:
      return at::kUInt32;
    case DType::kU64:
      return at::kUInt64;
    case DType::kF8:
    case DType::kOpaque:
      break;
  }
  throw InputError("tensors of type " + std::string(to_text(dtype)) + " cannot be computed with");
}

Program::Program(const ExportedProgram& exported, BatchSize micro_batch, at::Device device)
    : exported_(&exported), micro_batch_(micro_batch), device_(device) {
  const BatchRange range = graph().batch();
  if (micro_batch < range.min || micro_batch > range.max) {
    throw InputError(graph().name() + ": was exported for micro-batches of " +
                     std::to_string(range.min.count()) +
                     (range.fixed() ? "" : " to " + std::to_string(range.max.count())) + ", not " +
                     std::to_string(micro_batch.count()));
  }
  prepared_.reserve(exported.calls.size());
  for (std::size_t i = 0; i < exported.calls.size(); ++i) {
    const OperatorId op(i);
    const Call& call = exported.calls[i];
    const auto handle = c10::Dispatcher::singleton().findSchema({call.target, call.overload});
    if (!handle) {
      throw InputError(describe(op) + ": this libtorch has no operator " + call.target +
                       (call.overload.empty() ? "" : "." + call.overload));
    }
    Prepared prepared{*handle, {}, graph().op(op).random};
    // Of PyTorch's own operators our table knows better: dropout without dropping draws nothing.
    const bool in_our_table = graph().op(op).known && call.target.starts_with("aten::");
    if (!in_our_table && handle->hasTag(at::Tag::nondeterministic_seeded)) prepared.random = true;
    std::size_t used = 0;
    for (const c10::Argument& formal : handle->schema().arguments()) {
      const auto given = std::find_if(call.arguments.begin(), call.arguments.end(),
                                      [&](const Argument& a) { return a.name == formal.name(); });
      if (given != call.arguments.end()) {
        ++used;
        prepared.slots.push_back(prepare(op, formal, given->value));
      } else if (formal.default_value()) {
        prepared.slots.push_back({Slot::Kind::kValue, *formal.default_value(), {}});
      } else {
        throw InputError(describe(op) + ": has no argument '" + formal.name() + "', which " + call.target +
                         " needs");
      }
    }
    if (used != call.arguments.size()) {
      throw InputError(describe(op) + ": has an argument that " + call.target +
                       " does not know in this libtorch");
    }
    check_writes(op, prepared);
    prepared_.push_back(std::move(prepared));
  }
}

// The graph says what is written from the operator's name and our table, the schema from the operator itself.
// A plan made without knowing of a write would be wrong without a word.
void Program::check_writes(OperatorId id, const Prepared& prepared) const {
  const Operator& op = graph().op(id);
  const Call& call = exported_->calls[id.index()];
  const auto switched_off = [](const Argument& argument) {  // statistics that are only read
    return (argument.name == "training" || argument.name == "use_input_stats") &&
           argument.value == ArgumentValue(false);
  };
  if (std::any_of(call.arguments.begin(), call.arguments.end(), switched_off)) return;
  const auto& formals = prepared.handle.schema().arguments();
  for (std::size_t i = 0; i < formals.size(); ++i) {
    if (formals[i].alias_info() == nullptr || !formals[i].alias_info()->isWrite()) continue;
    for (const OptionalTensor& tensor : prepared.slots[i].tensors) {
      if (!tensor || std::find(op.mutates.begin(), op.mutates.end(), *tensor) != op.mutates.end()) continue;
      throw InputError(describe(id) + ": " + call.target + " writes its argument '" + formals[i].name() +
                       "', which the model's graph does not know; export the model with an operator that "
                       "returns a new tensor");
    }
  }
}

Program::Slot Program::prepare(OperatorId op, const c10::Argument& formal,
                               const ArgumentValue& actual) const {
  if (const auto* tensor = std::get_if<TensorId>(&actual)) {
    return {Slot::Kind::kTensor, {}, {*tensor}};
  }
  if (const auto* list = std::get_if<std::vector<OptionalTensor>>(&actual)) {
    const auto type = inner(formal.type())->cast<c10::ListType>();
    const bool optional = type && type->getElementType()->kind() == c10::TypeKind::OptionalType;
    return {optional ? Slot::Kind::kOptionalTensorList : Slot::Kind::kTensorList, {}, *list};
  }
  if (formal.name() == "sparse" && exported_->calls[op.index()].target.starts_with("aten::embedding")) {
    return {Slot::Kind::kValue, c10::IValue(false), {}};
  }
  std::optional<c10::IValue> value = std::visit(Converter(formal, micro_batch_, device_), actual);
  if (!value) {
    throw InputError(describe(op) + ": argument '" + formal.name() + "' must be of type " +
                     formal.type()->str());
  }
  return {Slot::Kind::kValue, std::move(*value), {}};
}

void Program::call(OperatorId op, Tensors& tensors, const RandomKey& key) const {
  const Prepared& prepared = prepared_[op.index()];
  const Call& call = exported_->calls[op.index()];
  torch::jit::Stack stack;
  stack.reserve(prepared.slots.size());
  for (const Slot& slot : prepared.slots) {
    switch (slot.kind) {
      case Slot::Kind::kValue:
        stack.push_back(slot.value);
        break;
      case Slot::Kind::kTensor:
        stack.emplace_back(tensors[slot.tensors[0]->index()]);
        break;
      case Slot::Kind::kTensorList: {
        c10::List<at::Tensor> list;
        for (const OptionalTensor& t : slot.tensors) list.push_back(tensors[t.value().index()]);
        stack.emplace_back(std::move(list));
        break;
      }
      case Slot::Kind::kOptionalTensorList: {
        c10::List<std::optional<at::Tensor>> list;
        for (const OptionalTensor& t : slot.tensors) {
          list.push_back(t ? std::optional(tensors[t->index()]) : std::nullopt);
        }
        stack.emplace_back(std::move(list));
        break;
      }
    }
  }
  try {
    const at::AutoGradMode mode(call.grad_enabled && at::GradMode::is_enabled());
    const AutocastGuard autocast(call.autocast, device_);
    if (prepared.random) {
      const std::lock_guard lock(random_lock());
      const SeededGenerators seeded(device_,
                                    stream_key(key.seed, {key.step, key.micro_batch, call.original_index}));
      prepared.handle.callBoxed(stack);
    } else {
      prepared.handle.callBoxed(stack);
    }
  } catch (const std::exception& error) {
    throw_blamed(describe(op), error);
  }
  for (std::size_t i = 0; i < call.outputs.size(); ++i) {
    const Call::Output& output = call.outputs[i];
    if (output.is_list) {
      c10::List<at::Tensor> list = stack.at(i).toTensorList();
      for (std::size_t k = 0; k < output.tensors.size(); ++k) {
        if (output.tensors[k]) tensors[output.tensors[k]->index()] = list.get(k);
      }
    } else if (!output.tensors.empty() && output.tensors[0]) {
      tensors[output.tensors[0]->index()] = std::move(stack.at(i)).toTensor();
    }
  }
}

std::vector<std::int64_t> Program::sizes(TensorId id) const {
  std::vector<std::int64_t> sizes;
  for (const SizeExpr& size : graph().tensor(id).sizes) sizes.push_back(size.at(micro_batch_));
  return sizes;
}

std::string Program::describe(OperatorId id) const {
  const Operator& op = graph().op(id);
  std::string where = op.module_path;
  if (!op.source.empty()) where += (where.empty() ? "" : ", ") + op.source;
  return "operator '" + op.name + "'" + (where.empty() ? "" : " (" + where + ")");
}

at::Tensor load_stored(const StoredTensor& stored, std::string_view archive, at::Device device) {
  const auto options = at::TensorOptions(torch_type(stored.dtype));
  const auto element = static_cast<std::int64_t>(options.dtype().itemsize());
  std::int64_t last = stored.storage_offset;
  bool empty = false;
  for (std::size_t i = 0; i < stored.sizes.size(); ++i) {
    empty = empty || stored.sizes[i] == 0;
    last += (stored.sizes[i] - 1) * stored.strides[i];
  }
  if (empty) return at::empty(stored.sizes, options.device(device));
  ESP_CHECK(stored.offset + stored.size <= archive.size() &&
                (last + 1) * element <= static_cast<std::int64_t>(stored.size),
            stored.entry, stored.size, last);
  // Alignment is not promised by the file format, so the bytes go through a tensor of bytes.
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(stored.size) / element * element}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), archive.data() + stored.offset,
              static_cast<std::size_t>(bytes.numel()));
  const at::Tensor view = bytes.view(options.dtype().toScalarType())
                              .as_strided(stored.sizes, stored.strides, stored.storage_offset);
  return view.to(at::TensorOptions(device), false, true, at::MemoryFormat::Preserve);
}

}  // namespace espalier
