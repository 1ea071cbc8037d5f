#pragma once

// A torch.export program as read from a .pt2 file: the Graph, and for each of its operators what calling it
// takes. Read without libtorch; the runtime executes it with libtorch.
//
// Operators here are those of the file less what is evaluated at load: sizes (`aten.sym_size.int`,
// `_operator.*` on integers) become SizeExpr, assertions are dropped, sub-graphs of
// wrap_with_set_grad_enabled and wrap_with_autocast are inlined. `original_index` numbers the flat list
// before that, so random streams do not depend on what was dropped.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "espalier/frontend/imported.h"
#include "espalier/frontend/zip.h"

namespace espalier {

struct NoArgument {
  friend bool operator==(const NoArgument&, const NoArgument&) = default;
};
enum class LayoutArgument : std::uint8_t { kStrided };
enum class MemoryFormatArgument : std::uint8_t { kContiguous, kPreserve, kChannelsLast, kChannelsLast3d };
struct DeviceArgument {  // overridden by the stage's device
  friend bool operator==(const DeviceArgument&, const DeviceArgument&) = default;
};
using OptionalTensor = std::optional<TensorId>;

using ArgumentValue =
    std::variant<NoArgument, TensorId, std::vector<OptionalTensor>, SizeExpr, std::vector<SizeExpr>, double,
                 std::vector<double>, bool, std::vector<bool>, std::string, DType, LayoutArgument,
                 MemoryFormatArgument, DeviceArgument>;

struct Argument {
  std::string name;  // of the operator's schema; arguments at their default are absent
  ArgumentValue value;
  friend bool operator==(const Argument&, const Argument&) = default;
};

struct Call {
  std::string target;    // "aten::linear"
  std::string overload;  // "" for default
  std::vector<Argument> arguments;
  // Outputs in the order of the schema: one tensor, or a list of tensors (chunk, split). An absent one is not
  // used by anybody, or is a number.
  struct Output {
    bool is_list = false;
    std::vector<OptionalTensor> tensors;  // one unless is_list
    friend bool operator==(const Output&, const Output&) = default;
  };
  std::vector<Output> outputs;
  std::uint32_t original_index = 0;
  bool grad_enabled = true;  // false inside no_grad
  // The type that torch.autocast computes in around this call, on whichever device it runs. Casts of weights
  // are not kept from one call to the next: torch.export says so of each region.
  std::optional<DType> autocast = {};
  friend bool operator==(const Call&, const Call&) = default;
};

// Where the bytes of a parameter, buffer or constant lie in the archive. Tied parameters are one tensor with
// one of these; their further names are in the Parameter. The view lies within the entry (checked).
struct StoredTensor {
  TensorId tensor;
  std::string entry;         // "data/weights/weight_0"
  std::uint64_t offset = 0;  // of the entry's data in the file
  std::uint64_t size = 0;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t storage_offset = 0;  // in elements
  bool absent = false;              // the file does not hold the bytes (a model made on the meta device)
  friend bool operator==(const StoredTensor&, const StoredTensor&) = default;
};

struct UserInput {
  std::string name;  // the argument's, as data files call it
  TensorId tensor;
  // Range of the archive's own sample of it, for integers and for what lies between 0 and 1 (a probability,
  // an image): synthetic data stay within it.
  std::optional<std::int64_t> sample_min = {}, sample_max = {};
  friend bool operator==(const UserInput&, const UserInput&) = default;
};

// An output that the export was asked to keep, such as an accuracy; evaluation reports it.
struct UserOutput {
  std::string name;
  TensorId tensor;
  friend bool operator==(const UserOutput&, const UserOutput&) = default;
};

struct ExportedProgram {
  Imported imported;
  std::vector<Call> calls;           // by OperatorId
  std::vector<StoredTensor> stored;  // parameters, buffers, constants
  std::vector<UserInput> inputs;     // in the order of the model's signature
  std::vector<UserOutput> outputs;   // beside the loss; floating-point tensors
};

// Throws InputError if the file lacks the bytes of a stored tensor, saying how to get a file with them.
void require_weights(const ExportedProgram& program, const std::string& file);

// Throws InputError naming file, node, the user's source line, and what would be right, also for an operator
// that neither libtorch has nor the file describes. Bounded memory. The program must have a loss unless the
// options say otherwise.
ExportedProgram read_exported_program(std::string_view archive, const std::string& name,
                                      const ImportOptions& options = {});

// The operators whose effect on memory nobody told, neither the table of aten operators nor the file: they
// count as possibly aliasing what they read, and never as duplicable. By target, in order of first use.
struct UnknownOperator {
  std::string target;
  std::size_t count = 0;
  OperatorId first;
  friend bool operator==(const UnknownOperator&, const UnknownOperator&) = default;
};
std::vector<UnknownOperator> unknown_operators(const Graph& graph);

}  // namespace espalier
