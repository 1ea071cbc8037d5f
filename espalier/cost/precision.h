#pragma once

// In which numbers a plan supposes that a model computes, where nobody measured it.
//
//   f32    as the model was exported: f32 numbers without TF32, which PyTorch does not use unless told
//   tf32   the same numbers; matrix work on f32 runs on TF32 units (torch.set_float32_matmul_precision)
//   bf16   mixed precision: parameters, gradients, activations and inputs that were f32 are bf16, and so is
//          what is sent; buffers and the loss stay. The optimizer keeps its moments and a copy of the
//          parameters in f32 (Micikevicius et al., ICLR'18), 6 bytes a byte of parameters for Adam where f32
//          has 2: together with parameters and gradients 16 bytes a number in both
//
// Types other than f32 stay as they are. Rates: DeviceKind in cluster.h. The runtime computes in the model's
// own types, so it runs plans of f32 only.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "espalier/cluster/cluster.h"
#include "espalier/graph/graph.h"

namespace espalier {

enum class Precision : std::uint8_t { kF32, kTf32, kBF16 };
std::string_view to_text(Precision precision);  // "f32", "tf32", "bf16"
std::optional<Precision> parse_precision(std::string_view text);

// Rate of matrix work on numbers of that type.
double matrix_rate(const DeviceKind& kind, DType type, Precision precision);

// The graph as a plan of that precision sees it: itself, or for bf16 with f32 tensors and parameters in bf16,
// and classes of their own for the operators that touch them. Throws InputError for bf16 and tf32 where the
// graph is a profile of bytes, whose numbers nobody knows.
Graph with_precision(const Graph& graph, Precision precision);

// "f32: matrix work at 19.5 Tflop/s on A100-80GB, 15.7 on V100-16GB", for the type that f32 becomes; and what
// another precision would change, if it would.
std::string precision_text(const Cluster& cluster, Precision precision);

}  // namespace espalier
