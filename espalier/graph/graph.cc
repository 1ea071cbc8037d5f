#include "espalier/graph/graph.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "espalier/base/check.h"
#include "espalier/base/hash.h"
#include "espalier/graph/alias.h"

namespace espalier {
namespace {

struct DTypeFacts {
  DType dtype;
  std::string_view name;
  std::int64_t size;
  bool floating;
};
constexpr std::array<DTypeFacts, 18> kDTypes{{
    {DType::kOpaque, "opaque", 1, true},
    {DType::kU8, "u8", 1, false},
    {DType::kI8, "i8", 1, false},
    {DType::kI16, "i16", 2, false},
    {DType::kI32, "i32", 4, false},
    {DType::kI64, "i64", 8, false},
    {DType::kF16, "f16", 2, true},
    {DType::kF32, "f32", 4, true},
    {DType::kF64, "f64", 8, true},
    {DType::kBF16, "bf16", 2, true},
    {DType::kBool, "bool", 1, false},
    {DType::kC32, "c32", 4, true},
    {DType::kC64, "c64", 8, true},
    {DType::kC128, "c128", 16, true},
    {DType::kU16, "u16", 2, false},
    {DType::kU32, "u32", 4, false},
    {DType::kU64, "u64", 8, false},
    {DType::kF8, "f8", 1, true},
}};

const DTypeFacts& facts(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  ESP_CHECK(index < kDTypes.size() && kDTypes[index].dtype == dtype, index);
  return kDTypes[index];
}

Bytes checked_bytes(std::int64_t elements, DType dtype, const std::string& name) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 62;
  const std::int64_t size = facts(dtype).size;
  if (elements > kLimit / size) throw InputError("'" + name + "' is larger than 2^62 bytes");
  return Bytes(elements * size);
}

}  // namespace

Bytes element_size(DType dtype) {
  return Bytes(facts(dtype).size);
}
bool is_floating_point(DType dtype) {
  return facts(dtype).floating;
}
std::string_view to_text(DType dtype) {
  return facts(dtype).name;
}
std::optional<DType> parse_dtype(std::string_view text) {
  for (const DTypeFacts& known : kDTypes) {
    if (known.name == text) return known.dtype;
  }
  return std::nullopt;
}

SizeExpr Tensor::elements() const {
  SizeExpr product = 1;
  for (const SizeExpr& size : sizes) product = product * size;
  return product;
}

std::int64_t Tensor::elements(BatchSize batch) const {
  return product_at(sizes, batch);
}

Bytes Tensor::bytes(BatchSize batch) const {
  return checked_bytes(elements(batch), dtype, name);
}

std::int64_t Parameter::elements() const {
  SizeExpr product = 1;
  for (const std::int64_t size : sizes) product = product * size;
  return *product.constant();
}

Bytes Parameter::bytes() const {
  return checked_bytes(elements(), dtype, names.empty() ? "" : names[0]);
}

bool is_training_graph(std::span<const Operator> operators) {
  return std::any_of(operators.begin(), operators.end(),
                     [](const Operator& op) { return op.role != OperatorRole::kForward; });
}

std::string type_text(const Tensor& tensor) {
  std::string text(to_text(tensor.dtype));
  text += '[';
  for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
    if (i > 0) text += ',';
    text += tensor.sizes[i].text();
  }
  return text + ']';
}

std::string default_op_class(const Operator& op, std::span<const Tensor> tensors) {
  std::string text = op.target + "(";
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (i > 0) text += ',';
    text += type_text(tensors[op.inputs[i].index()]);
  }
  text += ')';
  if (op.outputs.size() != 1) text += "->" + std::to_string(op.outputs.size());
  return text;
}

namespace {

// Rows from (row, item) pairs: items ascending, each once.
template <class Rows>
Rows rows_from(std::vector<std::pair<std::uint32_t, OperatorId>> pairs, std::size_t row_count) {
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  Rows rows;
  rows.begin.assign(row_count + 1, 0);
  rows.items.reserve(pairs.size());
  for (const auto& [row, item] : pairs) {
    ++rows.begin[row + 1];
    rows.items.push_back(item);
  }
  std::partial_sum(rows.begin.begin(), rows.begin.end(), rows.begin.begin());
  return rows;
}

using Edges = std::vector<std::pair<OperatorId, OperatorId>>;

void add_data_edges(const GraphParts& parts, Edges& edges) {
  for (std::size_t i = 0; i < parts.operators.size(); ++i) {
    for (const TensorId input : parts.operators[i].inputs) {
      if (const auto producer = parts.tensors[input.index()].producer) {
        edges.emplace_back(*producer, OperatorId(i));
      }
    }
  }
}

// A mutation waits for everyone who touched the memory since the mutation before it, and for that one;
// whoever touches it afterwards waits for the mutation.
void add_mutation_edges(const GraphParts& parts, Edges& edges) {
  const AliasSets sets(parts);
  if (!sets.any_mutated()) return;
  struct State {
    std::optional<OperatorId> writer;
    std::vector<OperatorId> since;
  };
  std::vector<State> state(sets.count());
  for (std::size_t i = 0; i < parts.operators.size(); ++i) {
    const Operator& op = parts.operators[i];
    const OperatorId id(i);
    for (const std::uint32_t set : sets.touched_by(op)) {
      State& s = state[set];
      if (!sets.mutated(set)) continue;
      if (s.writer) edges.emplace_back(*s.writer, id);
      if (sets.mutates(op, set)) {
        for (const OperatorId earlier : s.since) edges.emplace_back(earlier, id);
        s = {id, {}};
      } else {
        s.since.push_back(id);
      }
    }
  }
}

}  // namespace

Graph::Graph(GraphParts parts) : parts_(std::move(parts)) {
  if (const auto violations = check_graph(parts_); !violations.empty()) throw InputError(violations[0]);
  const std::size_t operator_count = parts_.operators.size();

  std::vector<std::pair<std::uint32_t, OperatorId>> pairs;
  for (std::size_t i = 0; i < operator_count; ++i) {
    for (const TensorId input : parts_.operators[i].inputs) {
      pairs.emplace_back(static_cast<std::uint32_t>(input.index()), OperatorId(i));
    }
  }
  readers_ = rows_from<Rows>(std::move(pairs), parts_.tensors.size());

  Edges edges;
  add_data_edges(parts_, edges);
  add_mutation_edges(parts_, edges);
  std::vector<std::pair<std::uint32_t, OperatorId>> forward;
  std::vector<std::pair<std::uint32_t, OperatorId>> backward;
  for (const auto& [from, to] : edges) {
    forward.emplace_back(static_cast<std::uint32_t>(from.index()), to);
    backward.emplace_back(static_cast<std::uint32_t>(to.index()), from);
  }
  successors_ = rows_from<Rows>(std::move(forward), operator_count);
  predecessors_ = rows_from<Rows>(std::move(backward), operator_count);

  for (const Tensor& tensor : parts_.tensors) {
    storage_count_ = std::max(storage_count_, tensor.storage.index() + 1);
  }
  by_name_.resize(operator_count);
  std::iota(by_name_.begin(), by_name_.end(), 0);
  std::sort(by_name_.begin(), by_name_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return parts_.operators[a].name < parts_.operators[b].name;
  });
}

std::optional<OperatorId> Graph::find_operator(std::string_view name) const {
  const auto found =
      std::lower_bound(by_name_.begin(), by_name_.end(), name,
                       [&](std::uint32_t i, std::string_view n) { return parts_.operators[i].name < n; });
  if (found == by_name_.end() || parts_.operators[*found].name != name) return std::nullopt;
  return OperatorId(*found);
}

std::uint64_t Graph::fingerprint() const {
  Fingerprint print;
  const auto add_ids = [&](const auto& ids) {
    print.add(ids.size());
    for (const auto id : ids) print.add(id.index());
  };
  print.add(static_cast<std::uint64_t>(parts_.batch.min.count()));
  print.add(static_cast<std::uint64_t>(parts_.batch.max.count()));
  print.add(parts_.operators.size());
  for (const Operator& op : parts_.operators) {
    print.add(op.name);
    print.add(op.target);
    print.add(static_cast<std::uint64_t>(op.role));
    add_ids(op.inputs);
    add_ids(op.outputs);
    add_ids(op.mutates);
  }
  print.add(parts_.tensors.size());
  for (const Tensor& tensor : parts_.tensors) {
    print.add(tensor.name);
    print.add(static_cast<std::uint64_t>(tensor.role));
    print.add(type_text(tensor));
    print.add(std::uint64_t{tensor.requires_grad});
    print.add(tensor.storage.index());
    print.add(tensor.parameter ? tensor.parameter->index() + 1 : 0);
    if (tensor.gradient_of) print.add(tensor.gradient_of->index());
  }
  print.add(parts_.parameters.size());
  for (const Parameter& parameter : parts_.parameters) {
    print.add(parameter.names.size());
    for (const std::string& name : parameter.names) print.add(name);
    print.add(std::uint64_t{parameter.trainable});
    print.add(to_text(parameter.dtype));
    print.add(parameter.sizes.size());
    for (const std::int64_t size : parameter.sizes) print.add(static_cast<std::uint64_t>(size));
  }
  add_ids(parts_.outputs);
  print.add(parts_.loss ? parts_.loss->index() + 1 : 0);
  print.add(std::uint64_t{parts_.training_mode});
  return print.value();
}

}  // namespace espalier
