#pragma once

// A whole number that may depend on the batch: the size of a tensor's dimension, or its bytes.
// Contrastive logits have b·b elements, a sequence folded into the batch has 128·b rows.
//
// Built from constants and the batch `b` by +, ·, floor division, modulo, power, max and min; constants are
// folded, so an expression without `b` is one constant, and a product has its constant factor in front. A
// small immutable value: copy it freely.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/base/units.h"

namespace espalier {

class SizeExpr {
 public:
  SizeExpr(std::int64_t constant = 0);  // NOLINT(google-explicit-constructor): 3 is a size
  static SizeExpr batch();

  // The value at a batch. Throws InputError on overflow beyond 2^62, a division by zero or a negative power.
  std::int64_t at(BatchSize batch) const;

  // The value if it does not depend on the batch.
  std::optional<std::int64_t> constant() const;

  friend SizeExpr operator+(const SizeExpr& a, const SizeExpr& b);
  friend SizeExpr operator-(const SizeExpr& a, const SizeExpr& b);
  friend SizeExpr operator*(const SizeExpr& a, const SizeExpr& b);
  friend SizeExpr floor_div(const SizeExpr& a, const SizeExpr& b);  // towards minus infinity, as in Python
  friend SizeExpr mod(const SizeExpr& a, const SizeExpr& b);        // sign of b, as in Python
  friend SizeExpr power(const SizeExpr& a, const SizeExpr& b);
  friend SizeExpr max(const SizeExpr& a, const SizeExpr& b);
  friend SizeExpr min(const SizeExpr& a, const SizeExpr& b);
  friend std::int64_t product_at(std::span<const SizeExpr> factors, BatchSize batch);

  // Structural equality after folding: b*2 == 2*b, but 2*b and b+b are different texts of one function.
  friend bool operator==(const SizeExpr&, const SizeExpr&) = default;

  // "128*b", "(b+1)//2", "b%2", "b**2", "max(b,4)"; parses back to an equal value.
  std::string text() const;

 private:
  enum class Op : std::uint8_t { kConstant, kBatch, kAdd, kSub, kMul, kFloorDiv, kMod, kPower, kMax, kMin };
  struct Step {  // reverse Polish
    Op op;
    std::int64_t value;
    friend bool operator==(const Step&, const Step&) = default;
  };
  static SizeExpr combine(Op op, const SizeExpr& a, const SizeExpr& b);
  static std::int64_t apply(Op op, std::int64_t a, std::int64_t b);
  bool has_leading_factor() const;  // is constant · rest

  std::vector<Step> steps_;
};

// What the product of the factors is at a batch; throws as it does. Makes no expression.
std::int64_t product_at(std::span<const SizeExpr> factors, BatchSize batch);

// Throws InputError naming the text and the place in it. At most 4096 characters, 100 levels of brackets and
// 1000 parts.
SizeExpr parse_size_expr(std::string_view text);

}  // namespace espalier
