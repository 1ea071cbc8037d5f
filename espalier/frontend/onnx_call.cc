#include "espalier/frontend/onnx_call.h"

#include "espalier/base/check.h"

namespace espalier {
namespace onnx {
namespace {

// A constant, c·b, c·b², or a·b + c with these values.
std::optional<SizeExpr> with_values(const ProbeValues& values) {
  const auto all = [&](const auto& expected) {
    for (std::size_t i = 0; i < kProbes.size(); ++i)
      if (values[i] != expected(kProbes[i])) return false;
    return true;
  };
  const SizeExpr b = SizeExpr::batch();
  const std::int64_t first = kProbes[0], constant = values[0];
  if (all([&](std::int64_t) { return constant; })) return SizeExpr(constant);
  constexpr std::int64_t kMost = std::int64_t{1} << 50;  // what follows multiplies by a batch, twice
  if (std::any_of(values.begin(), values.end(), [](std::int64_t v) { return v > kMost || v < -kMost; }))
    return std::nullopt;
  if (values[0] % first == 0) {
    const std::int64_t factor = values[0] / first;
    if (all([&](std::int64_t p) { return factor * p; })) return factor == 1 ? b : SizeExpr(factor) * b;
    if (factor % first == 0) {
      const std::int64_t square = factor / first;
      if (all([&](std::int64_t p) { return square * p * p; }))
        return square == 1 ? b * b : SizeExpr(square) * (b * b);
    }
  }
  const std::int64_t run = kProbes[1] - first, rise = values[1] - values[0];
  if (rise % run != 0) return std::nullopt;
  const std::int64_t slope = rise / run, rest = values[0] - slope * first;
  if (!all([&](std::int64_t p) { return slope * p + rest; })) return std::nullopt;
  const SizeExpr line = slope == 1 ? b : SizeExpr(slope) * b;
  return rest < 0 ? line - SizeExpr(-rest) : line + SizeExpr(rest);
}

}  // namespace

std::optional<ProbeValues> values_of(const SizeExpr& size) {
  ProbeValues values{};
  try {
    for (std::size_t i = 0; i < kProbes.size(); ++i) values[i] = size.at(BatchSize(kProbes[i]));
  } catch (const InputError&) {
    return std::nullopt;
  }
  return values;
}

bool same(const SizeExpr& a, const SizeExpr& b) {
  if (a == b) return true;
  if (a.constant() && b.constant()) return false;
  const auto of_a = values_of(a), of_b = values_of(b);
  return of_a && of_b && *of_a == *of_b;
}

bool is(const SizeExpr& size, std::int64_t value) {
  return size.constant() == value;
}

SizeExpr product(std::span<const SizeExpr> sizes) {
  SizeExpr result = 1;
  for (const SizeExpr& size : sizes) result = result * size;
  return simplest(result);
}

SizeExpr quotient(const SizeExpr& a, const SizeExpr& b) {
  if (is(b, 1)) return a;
  const auto of_a = values_of(a), of_b = values_of(b);
  if (of_a && of_b) {
    ProbeValues divided{};
    bool exact = true;
    for (std::size_t i = 0; i < kProbes.size() && exact; ++i) {
      exact = (*of_b)[i] > 0 && (*of_a)[i] % (*of_b)[i] == 0;
      if (exact) divided[i] = (*of_a)[i] / (*of_b)[i];
    }
    if (exact)
      if (const std::optional<SizeExpr> fit = with_values(divided)) return *fit;
  }
  return simplest(floor_div(a, b));
}

SizeExpr broadcast(const SizeExpr& a, const SizeExpr& b) {
  if (is(b, 1) || same(a, b)) return a;
  if (is(a, 1)) return b;
  throw Unknown();
}

Sizes broadcast(const Sizes& a, const Sizes& b) {
  const Sizes& longer = a.size() >= b.size() ? a : b;
  const Sizes& shorter = a.size() >= b.size() ? b : a;
  Sizes result = longer;
  const std::size_t ahead = longer.size() - shorter.size();
  for (std::size_t i = 0; i < shorter.size(); ++i)
    result[ahead + i] = broadcast(longer[ahead + i], shorter[i]);
  return result;
}

}  // namespace onnx

SizeExpr simplest(const SizeExpr& size) {
  if (size.constant()) return size;
  const auto values = onnx::values_of(size);
  if (const auto fit = values ? onnx::with_values(*values) : std::nullopt) return *fit;
  constexpr std::size_t kLongest =
      4096;  // of texts that parse; files that square a size again and again end here
  if (!values || size.text().size() > kLongest) throw InputError("a size grows beyond all bounds");
  return size;
}

}  // namespace espalier
