#pragma once

// The operator graph: what is computed, with no word about where or when.
//
// Operators read and produce tensors. Tensors that share memory (views, in-place results) share a storage.
// Parameters and buffers are named storages; a tied parameter is one storage with several names. A training
// graph, with backward and update operators in it, is a legal Graph too (expand_backward.h makes one).
//
// Invariants (check_graph lists violations):
// - operators are numbered in a legal execution order: an operator's inputs are produced by smaller ids or by
//   nobody (inputs, parameters, buffers, constants), so a per-operator table is a vector;
// - names of operators, tensors and parameters are unique each in their kind; all texts are UTF-8;
// - a tensor has a producer exactly if its role is kActivation; a parameter exactly if kParameter or kBuffer;
// - outputs are numbered in the order of their producers: the outputs of one operator have consecutive ids,
//   smaller than those of the next operator (inputs, parameters, … may stand anywhere between);
// - storages are numbered by first appearance; all tensors of a parameter have its storage, type and sizes;
// - sizes are at least zero and tensors fit into 2^62 bytes at both ends of the batch range;
// - where memory is mutated, those that could see the difference have one colocation number
//   (see with_colocation);
// - in a training graph no tensor requires a gradient: nothing is left to autograd. A tensor that is the
//   gradient of another has its type and sizes;
// - a duplicable operator draws no random numbers, mutates nothing, gives nothing that needs a gradient, and
//   reads only inputs, constants, buffers that nobody mutates, and other duplicables' outputs.
// A Graph never changes once built; any number of threads may read it.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/base/ids.h"
#include "espalier/base/units.h"
#include "espalier/graph/size_expr.h"

namespace espalier {

enum class DType : std::uint8_t {
  kOpaque,  // a profile knows bytes, not elements: one byte each
  kU8,
  kI8,
  kI16,
  kI32,
  kI64,
  kF16,
  kF32,
  kF64,
  kBF16,
  kBool,
  kC32,
  kC64,
  kC128,
  kU16,
  kU32,
  kU64,
  kF8,
};
Bytes element_size(DType dtype);
bool is_floating_point(DType dtype);    // kOpaque counts as floating point: gradients flow through it
std::string_view to_text(DType dtype);  // "f32"
std::optional<DType> parse_dtype(std::string_view text);

enum class TensorRole : std::uint8_t { kInput, kParameter, kBuffer, kConstant, kActivation };

struct Tensor {
  std::string name = {};
  TensorRole role = TensorRole::kActivation;
  DType dtype = DType::kF32;
  std::vector<SizeExpr> sizes = {};  // no sizes: a scalar
  bool requires_grad = false;        // autograd sends a gradient into it
  StorageId storage = {};            // equal for aliases; numbered by first appearance
  std::optional<OperatorId> producer = {};
  std::optional<ParameterId> parameter = {};
  std::optional<TensorId> gradient_of = {};  // in a training graph: it is that tensor's gradient, or a part

  SizeExpr elements() const;
  std::int64_t elements(BatchSize batch) const;  // throws InputError beyond 2^62
  Bytes bytes(BatchSize batch) const;            // elements × element size; throws InputError on overflow
  friend bool operator==(const Tensor&, const Tensor&) = default;
};

// A parameter (trained) or a buffer (not trained; perhaps mutated, such as BatchNorm's statistics).
struct Parameter {
  std::vector<std::string> names = {};  // names[0] is the one used in files; the rest are ties
  bool trainable = true;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> sizes = {};
  bool persistent = true;         // a buffer that checkpoints leave out is not
  std::int64_t elements() const;  // throws InputError beyond 2^62
  Bytes bytes() const;
  friend bool operator==(const Parameter&, const Parameter&) = default;
};

enum class OperatorRole : std::uint8_t { kForward, kBackward, kUpdate };

struct Operator {
  std::string name = {};
  std::string target = {};  // "aten.linear.default"; in a profile, the layer's description
  OperatorRole role = OperatorRole::kForward;
  std::vector<TensorId> inputs = {};  // in argument order, repeated if read twice
  std::vector<TensorId> outputs = {};
  std::vector<TensorId> mutates = {};  // the inputs that it writes
  std::string module_path = {};        // "encoder.layers.0.linear1"; empty if unknown
  std::string source = {};             // "model.py:12"; empty if unknown
  std::string op_class = {};           // equal signature, equal cost: the key into a CostTable; never empty
  std::optional<std::uint32_t> colocation =
      {};                      // operators with one number stand in one stage or on one device
  bool duplicable = false;     // may stand in several stages (docs/semantics.md, graph)
  bool random = false;         // draws random numbers
  bool mixes_samples = false;  // its result for one sample depends on the others (BatchNorm, in-batch loss)
  bool known = true;           // false: the operator table does not know it; counted as possibly aliasing
  friend bool operator==(const Operator&, const Operator&) = default;
};

// Whether backward or update operators stand among them: a training graph's.
bool is_training_graph(std::span<const Operator> operators);

// The batches for which the graph was made: one (an export with constant sizes) or a range.
struct BatchRange {
  BatchSize min{1};
  BatchSize max{1};
  bool fixed() const { return min == max; }
  friend bool operator==(const BatchRange&, const BatchRange&) = default;
};

struct GraphParts {
  std::string name = {};
  BatchRange batch = {};
  std::vector<Operator> operators = {};
  std::vector<Tensor> tensors = {};
  std::vector<Parameter> parameters = {};
  std::vector<TensorId> outputs = {};
  std::optional<TensorId> loss = {};  // a floating-point scalar among `outputs`
  bool training_mode = true;          // exported in train or eval mode
  friend bool operator==(const GraphParts&, const GraphParts&) = default;
};

class Graph {
 public:
  // Throws InputError with the first violation that check_graph finds.
  explicit Graph(GraphParts parts);

  const std::string& name() const { return parts_.name; }
  BatchRange batch() const { return parts_.batch; }
  std::span<const Operator> operators() const { return parts_.operators; }
  std::span<const Tensor> tensors() const { return parts_.tensors; }
  std::span<const Parameter> parameters() const { return parts_.parameters; }
  std::span<const TensorId> outputs() const { return parts_.outputs; }
  std::optional<TensorId> loss() const { return parts_.loss; }
  bool training_mode() const { return parts_.training_mode; }
  const GraphParts& parts() const { return parts_; }

  const Operator& op(OperatorId id) const { return parts_.operators[id.index()]; }
  const Tensor& tensor(TensorId id) const { return parts_.tensors[id.index()]; }
  const Parameter& parameter(ParameterId id) const { return parts_.parameters[id.index()]; }
  std::size_t storage_count() const { return storage_count_; }

  // The operators that read a tensor, ascending, each once.
  std::span<const OperatorId> readers(TensorId id) const { return readers_.row(id.index()); }
  // Operators whose outputs this one reads, and the operators that read this one's; ascending, each once.
  // A mutation comes after the earlier readers of its memory and before the later ones: these are edges too.
  std::span<const OperatorId> predecessors(OperatorId id) const { return predecessors_.row(id.index()); }
  std::span<const OperatorId> successors(OperatorId id) const { return successors_.row(id.index()); }

  std::optional<OperatorId> find_operator(std::string_view name) const;

  // Structure and names, not weights, source lines, costs or the graph's own name: what a plan file remembers
  // of its model.
  std::uint64_t fingerprint() const;

  friend bool operator==(const Graph& a, const Graph& b) { return a.parts_ == b.parts_; }

 private:
  struct Rows {  // one flat vector for all lists
    std::vector<std::uint32_t> begin;
    std::vector<OperatorId> items;
    std::span<const OperatorId> row(std::size_t i) const {
      return std::span(items).subspan(begin[i], begin[i + 1] - begin[i]);
    }
  };

  GraphParts parts_;
  Rows readers_, predecessors_, successors_;
  std::size_t storage_count_ = 0;
  std::vector<std::uint32_t> by_name_;  // operator indices, sorted by name
};

// Every broken invariant, one line each, naming the operator or tensor; empty if there is none. Rules that
// need the ids to be in range are skipped where they are not. O(parts · log parts).
std::vector<std::string> check_graph(const GraphParts& parts);

// The colocation that mutations ask for, added to what `parts` already has: operators that share a number
// keep sharing one, the smallest that any of their group had; new groups get unused numbers by first
// operator. What already satisfies check_graph comes back unchanged. All ids are in range. One group holds,
// for each storage that somebody mutates: its producer and everyone who reads or mutates it up to its last
// mutation; for a parameter or a buffer everyone who touches it, since it lives on into the next step. The
// outputs of an operator with `known == false` count as aliases of its inputs. Later readers of an activation
// see a finished value, so they may stand elsewhere. An update (OperatorRole) binds nobody: it comes at the
// end of the step, and until then a reader elsewhere has a copy, as holders of a tied parameter do.
GraphParts with_colocation(GraphParts parts);

// "linear(f32[b,16],f32[16,16])": a class for operators whose cost depends on nothing else. An operator
// without exactly one output has their number behind it: "split(f32[b,8])->2".
std::string default_op_class(const Operator& op, std::span<const Tensor> tensors);

// "f32[b,16]"
std::string type_text(const Tensor& tensor);

}  // namespace espalier
