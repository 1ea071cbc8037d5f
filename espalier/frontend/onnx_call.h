#pragma once

// What the rules of onnx_rules.h work with: sizes that may depend on the batch, and a node with its inputs.
// Internal to the frontend.

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "espalier/frontend/onnx_sizes.h"

namespace espalier::onnx {

using Sizes = std::vector<SizeExpr>;

// Thrown by a rule that cannot tell; onnx_outputs catches it.
struct Unknown {};

// Sizes are compared and divided by their values at these batches, which no two of the sizes that models have
// share by chance.
inline constexpr std::array<std::int64_t, 4> kProbes{5, 7, 11, 16};
using ProbeValues = std::array<std::int64_t, kProbes.size()>;
std::optional<ProbeValues> values_of(const SizeExpr& size);  // none beyond 2^62

bool same(const SizeExpr& a, const SizeExpr& b);
bool is(const SizeExpr& size, std::int64_t value);
SizeExpr product(std::span<const SizeExpr> sizes);
SizeExpr quotient(const SizeExpr& a, const SizeExpr& b);

// numpy's rule: sizes of one are stretched, shorter shapes begin with ones. Throws Unknown.
SizeExpr broadcast(const SizeExpr& a, const SizeExpr& b);
Sizes broadcast(const Sizes& a, const Sizes& b);

// An operator's inputs and attributes, and what it gives. What is missing or does not fit ends in `Unknown`.
class OnnxCall {
 public:
  OnnxCall(const OnnxNode& of, std::span<const OnnxValue* const> inputs, std::int64_t version)
      : node(of), opset(version > 0 ? version : 1000), inputs_(inputs) {
    outputs.resize(std::max<std::size_t>(of.outputs.size(), 1));
  }

  const OnnxNode& node;
  const std::int64_t opset;
  std::vector<OnnxValue> outputs;

  bool has(std::size_t i) const { return i < inputs_.size() && inputs_[i] != nullptr; }
  std::size_t input_count() const { return inputs_.size(); }
  const OnnxValue& in(std::size_t i) const { return has(i) ? *inputs_[i] : throw Unknown(); }
  const Sizes& sizes(std::size_t i) const { return in(i).sizes; }
  std::size_t rank(std::size_t i) const { return in(i).sizes.size(); }
  const SizeExpr& size(std::size_t i, std::size_t dim) const {
    return dim < rank(i) ? sizes(i)[dim] : throw Unknown();
  }

  void give(std::size_t output, DType dtype, Sizes sizes) {
    if (output < outputs.size()) outputs[output].dtype = dtype, outputs[output].sizes = std::move(sizes);
  }
  void give(Sizes sizes) { give(0, in(0).dtype, std::move(sizes)); }

  // A dimension that may be counted from the end.
  static std::size_t dim_of(std::int64_t axis, std::size_t rank) {
    const auto r = static_cast<std::int64_t>(rank);
    if (axis < -r || axis >= r) throw Unknown();
    return static_cast<std::size_t>(axis < 0 ? axis + r : axis);
  }
  std::size_t axis(std::int64_t otherwise, std::size_t rank) const {
    return dim_of(node.integer("axis", otherwise), rank);
  }

  // Elements of an input that are plain numbers.
  std::optional<std::vector<std::int64_t>> numbers(std::size_t i) const {
    if (!has(i) || !in(i).integers) return std::nullopt;
    std::vector<std::int64_t> result;
    for (const SizeExpr& each : *in(i).integers) {
      if (!each.constant()) return std::nullopt;
      result.push_back(*each.constant());
    }
    return result;
  }
  // From an attribute (older versions) or an input; none if neither is there.
  std::optional<std::vector<std::int64_t>> list(const char* attribute, std::size_t input) const {
    auto given = node.integers(attribute);
    if (given || !has(input)) return given;
    given = numbers(input);
    if (!given) throw Unknown();
    return given;
  }

 private:
  std::span<const OnnxValue* const> inputs_;
};

}  // namespace espalier::onnx
