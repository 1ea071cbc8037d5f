#pragma once

// How the analytic model sees an operator: its family, what it keeps for backward, its arithmetic per
// element. Which operator is which stands in operator_table.cc, by aten, ONNX and other names
// (docs/cost-model.md prints it in words).

#include <cstdint>
#include <string>
#include <string_view>

#include "espalier/graph/graph.h"

namespace espalier {

enum class Family : std::uint8_t {
  kView,         // no kernel: shares its input's memory, or a number on the host
  kElementwise,  // and reductions, norms, copies: bound by memory
  kGenerate,     // writes without reading: arange, zeros
  kMatrix,
  kConvolution,
  kAttention,
  kLookup,     // reads the rows it needs: embedding, index
  kRecurrent,  // a layer known by its weights
  kUnknown,
};

enum class ContractionForm : std::uint8_t { kProduct, kEinsum, kConvolution, kTransposedConvolution };

// Kept beside tensors of the graph.
enum class Keeps : std::uint8_t {
  kNothing,
  kMask,
  kIndices,
  kChannelMask,  // of whole channels
  kRowStatistics,
  kGroupStatistics,
  kChannelStatistics,
  kLogSumExp,
  kScores,  // attention that stores its scores, and copies of q, k and v
  kProbabilities,
  kGates,
};

// Bits of OperatorFamily::saves: bit i below 24 is the i-th input.
constexpr std::uint32_t kSavesOutput = 1u << 24;
constexpr std::uint32_t kSavesIntegers = 1u << 25;  // every integer or boolean input: indices, labels, masks
constexpr std::uint32_t kSavesProduct = 1u << 26;   // each input that another input's gradient needs

struct OperatorFamily {
  Family family = Family::kUnknown;
  std::uint32_t saves = 0;
  Keeps keeps = Keeps::kNothing;
  ContractionForm contraction = ContractionForm::kProduct;
  std::uint32_t first_operand = 0;  // of a product: 1 where a bias stands first
  double flops_per_element = 1;
  bool has_gradient = true;
  bool reorders = false;  // copies its input into another layout while it runs
};

// "torch.ops.aten.add_.Tensor", "aten.add_.Tensor", "onnx.Add" and "add" are all "add".
std::string base_name(std::string_view target);

// By name; an operator of another name that returns only views of its inputs is a view, too.
OperatorFamily operator_family(const Graph& graph, OperatorId op);

}  // namespace espalier
