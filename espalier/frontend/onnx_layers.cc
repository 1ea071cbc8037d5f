#include "espalier/frontend/onnx_rules.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace espalier::onnx {

void layer_norm(OnnxCall& call) {
  like_first(call);
  Sizes statistics = call.sizes(0);
  for (std::size_t i = call.axis(-1, call.rank(0)); i < statistics.size(); ++i) statistics[i] = 1;
  for (std::size_t i = 1; i < call.outputs.size(); ++i) call.give(i, DType::kF32, statistics);
}

void batch_norm(OnnxCall& call) {
  like_first(call);
  for (std::size_t i = 1; i < call.outputs.size(); ++i) call.give(i, call.in(1).dtype, call.sizes(1));
}

void skip_layer_norm(OnnxCall& call) {  // output 3: the sum that was normalized
  like_first(call);
  for (std::size_t i = 1; i < call.outputs.size(); ++i) call.give(i, call.in(0).dtype, call.sizes(0));
}

void dropout(OnnxCall& call) {
  like_first(call);
  call.give(1, DType::kBool, call.sizes(0));
}

namespace {

Sizes matrix_product(Sizes a, Sizes b) {
  if (a.empty() || b.empty()) throw Unknown();
  const bool row = a.size() == 1, column = b.size() == 1;
  if (row) a.insert(a.begin(), SizeExpr(1));
  if (column) b.emplace_back(1);
  if (!same(a.back(), b[b.size() - 2])) throw Unknown();
  const SizeExpr rows = a[a.size() - 2], columns = b.back();
  a.resize(a.size() - 2);
  b.resize(b.size() - 2);
  Sizes result = broadcast(a, b);
  if (!row) result.push_back(rows);
  if (!column) result.push_back(columns);
  return result;
}

}  // namespace

void matmul(OnnxCall& call) {
  Sizes a = call.sizes(0), b = call.sizes(1);
  const auto turn = [](Sizes& sizes) {
    if (sizes.size() < 2) throw Unknown();
    std::swap(sizes[sizes.size() - 1], sizes[sizes.size() - 2]);
  };
  if (call.node.integer("transA", 0) != 0) turn(a);
  if (call.node.integer("transB", 0) != 0) turn(b);
  const DType dtype = call.node.type == "MatMulInteger" ? DType::kI32 : call.in(0).dtype;
  call.give(0, dtype, matrix_product(std::move(a), std::move(b)));
}

void quantized_matmul(OnnxCall& call) {
  call.give(0, call.in(7).dtype, matrix_product(call.sizes(0), call.sizes(3)));
}

void matmul_few_bits(OnnxCall& call) {
  Sizes sizes = call.sizes(0);
  const std::int64_t columns = call.node.integer("N", 0);
  if (sizes.empty() || columns < 1) throw Unknown();
  sizes.back() = columns;
  call.give(std::move(sizes));
}

namespace {

// A window that slides over the dimensions behind the first two.
struct Window {
  static constexpr std::int64_t kLongest = std::int64_t{1} << 31;  // of a kernel
  std::vector<std::int64_t> kernel, strides, dilations, pads;      // pads: all begins, then all ends
  std::string auto_pad;
  bool ceil = false;

  Window(const OnnxNode& node, std::vector<std::int64_t> of_weights) : kernel(std::move(of_weights)) {
    if (const auto given = node.integers("kernel_shape")) kernel = *given;
    const auto list = [&](const char* name, std::size_t count, std::int64_t otherwise) {
      std::vector<std::int64_t> result = node.integers(name).value_or(std::vector<std::int64_t>());
      if (result.empty()) result.assign(count, otherwise);
      if (result.size() != count) throw Unknown();
      return result;
    };
    strides = list("strides", kernel.size(), 1);
    dilations = list("dilations", kernel.size(), 1);
    pads = list("pads", 2 * kernel.size(), 0);
    auto_pad = node.text("auto_pad");
    ceil = node.integer("ceil_mode", 0) != 0;
    for (std::size_t i = 0; i < kernel.size(); ++i)
      if (kernel[i] < 1 || kernel[i] > kLongest || strides[i] < 1 || dilations[i] < 1) throw Unknown();
  }

  std::int64_t reach(std::size_t i) const { return dilations[i] * (kernel[i] - 1) + 1; }
  SizeExpr places(const SizeExpr& size, std::size_t i) const {
    if (auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER")
      return simplest(floor_div(size + (strides[i] - 1), strides[i]));
    const std::int64_t padded = auto_pad == "VALID" ? 0 : pads[i] + pads[i + kernel.size()];
    const SizeExpr span = size + SizeExpr(padded - reach(i));
    const SizeExpr count = simplest(floor_div(ceil ? span + (strides[i] - 1) : span, strides[i]) + 1);
    const bool known = ceil && count.constant() && size.constant();
    const bool begins_behind =
        known && *((count - 1) * strides[i]).constant() >= *(size + pads[i]).constant();
    return begins_behind ? SizeExpr(*count.constant() - 1)
                         : count;  // a window over padding alone is left out
  }
};

std::vector<std::int64_t> kernel_of(const Sizes& weights) {
  std::vector<std::int64_t> kernel;
  for (std::size_t i = 2; i < weights.size(); ++i) {
    if (!weights[i].constant()) throw Unknown();
    kernel.push_back(*weights[i].constant());
  }
  return kernel;
}

Sizes slid(const OnnxCall& call, const SizeExpr& channels, const Window& window) {
  if (call.rank(0) != window.kernel.size() + 2) throw Unknown();
  Sizes result{call.size(0, 0), channels};
  for (std::size_t i = 0; i < window.kernel.size(); ++i)
    result.push_back(window.places(call.size(0, i + 2), i));
  return result;
}

}  // namespace

void convolution(OnnxCall& call) {
  const std::size_t weights = call.node.type == "QLinearConv" ? 3 : 1;
  const Window window(call.node, kernel_of(call.sizes(weights)));
  const DType dtype = call.node.type == "ConvInteger"   ? DType::kI32
                      : call.node.type == "QLinearConv" ? call.in(7).dtype
                                                        : call.in(0).dtype;
  call.give(0, dtype, slid(call, call.size(weights, 0), window));
}

void transposed_convolution(OnnxCall& call) {
  const Window window(call.node, kernel_of(call.sizes(1)));
  const std::size_t dims = window.kernel.size();
  if (call.rank(0) != dims + 2) throw Unknown();
  Sizes result{call.size(0, 0), call.size(1, 1) * call.node.integer("group", 1)};
  const auto given = call.node.integers("output_shape");
  auto more = call.node.integers("output_padding").value_or(std::vector<std::int64_t>());
  more.resize(dims, 0);
  for (std::size_t i = 0; i < dims; ++i) {
    const SizeExpr& from = call.size(0, i + 2);
    if (given && given->size() >= dims) {
      result.emplace_back((*given)[given->size() - dims + i]);
    } else if (window.auto_pad == "SAME_UPPER" || window.auto_pad == "SAME_LOWER") {
      result.push_back(from * window.strides[i]);
    } else {
      const std::int64_t pads = window.auto_pad == "VALID" ? 0 : window.pads[i] + window.pads[i + dims];
      result.push_back(simplest((from - 1) * window.strides[i] + SizeExpr(more[i] + window.reach(i) - pads)));
    }
  }
  call.give(std::move(result));
}

void pool(OnnxCall& call) {
  const Window window(call.node, {});
  Sizes sizes = slid(call, call.size(0, 1), window);
  call.give(1, DType::kI64, sizes);
  call.give(std::move(sizes));
}

void global_pool(OnnxCall& call) {
  Sizes sizes = call.sizes(0);
  for (std::size_t i = 2; i < sizes.size(); ++i) sizes[i] = 1;
  call.give(std::move(sizes));
}

void einsum(OnnxCall& call) {
  std::string equation = call.node.text("equation");
  std::erase(equation, ' ');
  const auto arrow = equation.find("->");
  if (arrow == std::string::npos || equation.find('.') != std::string::npos) throw Unknown();
  std::array<std::optional<SizeExpr>, 256> size;
  std::size_t input = 0, dim = 0;
  for (const char letter : std::string_view(equation).substr(0, arrow)) {
    if (letter == ',') {
      ++input, dim = 0;
      continue;
    }
    std::optional<SizeExpr>& known = size[static_cast<unsigned char>(letter)];
    const SizeExpr& here = call.size(input, dim++);
    known = known ? broadcast(*known, here) : here;
  }
  Sizes result;
  for (const char letter : std::string_view(equation).substr(arrow + 2))
    result.push_back(size[static_cast<unsigned char>(letter)] ? *size[static_cast<unsigned char>(letter)]
                                                              : throw Unknown());
  call.give(std::move(result));
}

void recurrent(OnnxCall& call) {
  const std::int64_t hidden = call.node.integer("hidden_size", 0);
  const std::int64_t ways = call.node.text("direction") == "bidirectional" ? 2 : 1;
  const bool batch_first = call.node.integer("layout", 0) != 0;
  if (hidden < 1) throw Unknown();
  const SizeExpr &steps = call.size(0, batch_first ? 1 : 0), &batch = call.size(0, batch_first ? 0 : 1);
  const DType dtype = call.in(0).dtype;
  call.give(0, dtype, batch_first ? Sizes{batch, steps, ways, hidden} : Sizes{steps, ways, batch, hidden});
  for (std::size_t i = 1; i < call.outputs.size(); ++i)
    call.give(i, dtype, batch_first ? Sizes{batch, ways, hidden} : Sizes{ways, batch, hidden});
}

// Scaled dot-product attention: queries, keys and values as [batch, tokens, heads·width], or with heads
// apart.
void attention(OnnxCall& call) {
  Sizes sizes = call.sizes(0);
  if (sizes.size() == 3 && call.node.integer("q_num_heads", 0) > 0) {
    const std::int64_t heads = call.node.integer("kv_num_heads", call.node.integer("q_num_heads", 0));
    if (heads < 1) throw Unknown();
    sizes[2] = quotient(call.size(2, 2), heads) * call.node.integer("q_num_heads", 0);
  } else if (sizes.size() == 4) {
    sizes[3] = call.size(2, 3);
  }
  call.give(std::move(sizes));
  if (call.outputs.size() > 1) throw Unknown();
}

// com.microsoft's, which multiplies by the weights itself: [batch, tokens, in] and [in, 3·heads·width].
void attention_with_weights(OnnxCall& call) {
  Sizes sizes = call.sizes(0);
  if (sizes.size() != 3 || call.outputs.size() > 1) throw Unknown();
  const auto parts = call.node.integers("qkv_hidden_sizes");
  sizes[2] = parts && parts->size() == 3 ? SizeExpr(parts->back()) : quotient(call.size(1, 1), 3);
  call.give(std::move(sizes));
}

void multi_head_attention(OnnxCall& call) {  // com.microsoft
  Sizes sizes = call.sizes(0);
  if (sizes.size() != 3 || call.outputs.size() > 1) throw Unknown();
  if (call.has(2) && call.rank(2) == 3) sizes[2] = call.size(2, 2);
  call.give(std::move(sizes));
}

}  // namespace espalier::onnx
