#pragma once

// What the operators of ONNX do to types and sizes: most files say neither of what lies between their inputs
// and outputs. Sizes are expressions in the batch; elements of small whole-number tensors are known too,
// since files compute the sizes that Reshape, Expand and Slice are given. Internal to the frontend.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "espalier/frontend/onnx_file.h"
#include "espalier/graph/size_expr.h"

namespace espalier {

struct OnnxValue {
  DType dtype = DType::kF32;
  std::vector<SizeExpr> sizes = {};
  bool constant = false;  // no input of the model changes it, but for the batch
  // Its elements in row-major order, at most kMostOnnxConstants: of whole numbers or booleans, or of real
  // numbers.
  std::optional<std::vector<SizeExpr>> integers = {};
  std::optional<std::vector<double>> reals = {};
};

// The outputs of a node, those without a name too; none if the operator is unknown here, if its sizes depend
// on data (NonZero), or if its inputs do not fit together. `inputs`: null where one is left out. `opset`: the
// version of ONNX's own operators, 0 for the newest. O(sizes and elements).
std::optional<std::vector<OnnxValue>> onnx_outputs(const OnnxNode& node,
                                                   std::span<const OnnxValue* const> inputs,
                                                   std::int64_t opset);

// An initializer or the value of a Constant; none for a type that is not read (strings).
std::optional<OnnxValue> onnx_constant(const OnnxTensor& tensor);

// An equal size in its simplest form, found from its values: "(768*b)//768" is "b". Throws InputError where
// it is out of all bounds.
SizeExpr simplest(const SizeExpr& size);

}  // namespace espalier
