#include "espalier/graph/size_expr.h"

#include <cctype>

#include "espalier/base/check.h"

namespace espalier {
namespace {

constexpr std::int64_t kLimit = std::int64_t{1} << 62;
constexpr std::size_t kMaxSteps = 1000;
constexpr std::size_t kMaxText = 4096;
constexpr int kMaxDepth = 100;

__extension__ using Int128 = __int128;

std::int64_t to_int64(Int128 value) {
  if (value > kLimit || value < -kLimit) throw InputError("a size overflows: expected at most 2^62");
  return static_cast<std::int64_t>(value);
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == 0) throw InputError("a size is divided by zero");
  const Int128 quotient = static_cast<Int128>(a) / b;
  return to_int64(quotient - (static_cast<Int128>(a) % b != 0 && (a < 0) != (b < 0) ? 1 : 0));
}

std::int64_t raise(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) throw InputError("a size is raised to a negative power");
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  std::int64_t result = 1;  // overflows after at most 63 rounds
  for (std::int64_t i = 0; i < exponent; ++i) result = to_int64(static_cast<Int128>(result) * base);
  return result;
}

// text := term {(+|-) term}; term := power {(*|//|%) power}; power := atom [** atom];
// atom := [-] number | b | max(text,text) | min(text,text) | (text)
class SizeParser {
 public:
  explicit SizeParser(std::string_view text) : text_(text) {}

  SizeExpr parse() {
    if (text_.size() > kMaxText) fail("is longer than " + std::to_string(kMaxText) + " characters");
    SizeExpr result = sum();
    if (peek() != '\0' || at_ < text_.size()) fail("expected an operator or the end");
    return result;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    std::string shown(text_.substr(0, 60));
    for (char& c : shown) c = static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    throw InputError("size '" + shown + "': at column " + std::to_string(at_ + 1) + ": " + problem);
  }
  char peek() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(std::string_view token) {
    peek();
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }
  void expect(std::string_view token) {
    if (!take(token)) fail("expected '" + std::string(token) + "'");
  }

  SizeExpr sum() {
    if (++depth_ > kMaxDepth) fail("is nested deeper than " + std::to_string(kMaxDepth) + " levels");
    SizeExpr result = product();
    while (true) {
      if (take("+")) {
        result = folded(result, product(), [](const auto& x, const auto& y) { return x + y; });
      } else if (take("-")) {
        result = folded(result, product(), [](const auto& x, const auto& y) { return x - y; });
      } else {
        --depth_;
        return result;
      }
    }
  }
  SizeExpr product() {
    SizeExpr result = raised();
    while (true) {
      if (take("//")) {
        result = folded(result, raised(), [](const auto& x, const auto& y) { return floor_div(x, y); });
      } else if (take("%")) {
        result = folded(result, raised(), [](const auto& x, const auto& y) { return mod(x, y); });
      } else if (peek() == '*' && take("*")) {
        result = folded(result, raised(), [](const auto& x, const auto& y) { return x * y; });
      } else {
        return result;
      }
    }
  }
  SizeExpr raised() {
    SizeExpr result = atom();
    if (!take("**")) return result;
    return folded(result, atom(), [](const auto& x, const auto& y) { return power(x, y); });
  }
  SizeExpr atom() {
    const char next = peek();
    if (next == '(') return ++at_, closed(sum());
    if (take("max(")) return pair([](const SizeExpr& x, const SizeExpr& y) { return max(x, y); });
    if (take("min(")) return pair([](const SizeExpr& x, const SizeExpr& y) { return min(x, y); });
    if (next == 'b') return ++at_, SizeExpr::batch();
    const bool negative = next == '-' && take("-");
    if (std::isdigit(static_cast<unsigned char>(peek())) == 0) {
      fail("expected a number, b, max(…), min(…) or (…)");
    }
    Int128 value = 0;
    for (; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0; ++at_) {
      value = value * 10 + (text_[at_] - '0');
      if (value > kLimit) fail("the number is beyond 2^62");
    }
    return {static_cast<std::int64_t>(negative ? -value : value)};
  }
  // Constants are folded as they are read, so an overflow has a place in the text.
  template <class F>
  SizeExpr folded(const SizeExpr& x, const SizeExpr& y, F combine) const {
    try {
      return combine(x, y);
    } catch (const InputError& error) {
      fail(error.what());
    }
  }
  SizeExpr closed(SizeExpr inner) {
    expect(")");
    return inner;
  }
  template <class F>
  SizeExpr pair(F combine) {
    SizeExpr left = sum();
    expect(",");
    return closed(folded(left, sum(), combine));
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

SizeExpr::SizeExpr(std::int64_t constant) : steps_{{Op::kConstant, constant}} {}

SizeExpr SizeExpr::batch() {
  SizeExpr result;
  result.steps_ = {{Op::kBatch, 0}};
  return result;
}

std::int64_t SizeExpr::apply(Op op, std::int64_t a, std::int64_t b) {
  switch (op) {
    case Op::kAdd:
      return to_int64(static_cast<Int128>(a) + b);
    case Op::kSub:
      return to_int64(static_cast<Int128>(a) - b);
    case Op::kMul:
      return to_int64(static_cast<Int128>(a) * b);
    case Op::kFloorDiv:
      return floor_divide(a, b);
    case Op::kMod:
      return to_int64(static_cast<Int128>(a) - static_cast<Int128>(floor_divide(a, b)) * b);
    case Op::kPower:
      return raise(a, b);
    case Op::kMax:
      return a < b ? b : a;
    case Op::kMin:
      return b < a ? b : a;
    case Op::kConstant:
    case Op::kBatch:
      break;
  }
  ESP_CHECK(false, static_cast<int>(op));
  return 0;
}

std::int64_t SizeExpr::at(BatchSize batch) const {
  if (steps_.size() == 1) return steps_[0].op == Op::kBatch ? batch.count() : steps_[0].value;
  std::vector<std::int64_t> stack;
  for (const Step& step : steps_) {
    if (step.op == Op::kConstant) {
      stack.push_back(step.value);
    } else if (step.op == Op::kBatch) {
      stack.push_back(batch.count());
    } else {
      const std::int64_t right = stack.back();
      stack.pop_back();
      stack.back() = apply(step.op, stack.back(), right);
    }
  }
  return stack.back();
}

std::optional<std::int64_t> SizeExpr::constant() const {
  if (steps_.size() == 1 && steps_[0].op == Op::kConstant) return steps_[0].value;
  return std::nullopt;
}

bool SizeExpr::has_leading_factor() const {
  if (steps_.back().op != Op::kMul || steps_[0].op != Op::kConstant) return false;
  // The product's left side is that constant alone if what lies between is one whole expression.
  int values = 0;
  for (std::size_t i = 1; i + 1 < steps_.size(); ++i) {
    values += steps_[i].op == Op::kConstant || steps_[i].op == Op::kBatch ? 1 : -1;
    if (values < 1) return false;
  }
  return values == 1;
}

// Besides constants, x+0, x-0, 0+x and 1*x are folded, and the constant factor of a product stands in front
// of it: 4*(b*b), never (4*b)*b. Applied to parts that are already in this form, `combine` is idempotent, so
// a printed expression parses back to itself.
SizeExpr SizeExpr::combine(Op op, const SizeExpr& a, const SizeExpr& b) {
  const auto left = a.constant();
  const auto right = b.constant();
  if (left && right) return {apply(op, *left, *right)};
  if (op == Op::kAdd && left == 0) return b;
  if ((op == Op::kAdd || op == Op::kSub) && right == 0) return a;

  const auto join = [](Op with, const SizeExpr& x, const SizeExpr& y) {
    SizeExpr result = x;
    result.steps_.insert(result.steps_.end(), y.steps_.begin(), y.steps_.end());
    result.steps_.push_back({with, 0});
    if (result.steps_.size() > kMaxSteps) {
      throw InputError("a size expression has more than " + std::to_string(kMaxSteps) + " parts");
    }
    return result;
  };
  if (op != Op::kMul) return join(op, a, b);

  // Split each factor into its leading constant and the rest; the rest is absent for a pure constant.
  std::int64_t factor = 1;
  std::vector<SizeExpr> rest;
  for (const SizeExpr* side : {&a, &b}) {
    if (const auto constant = side->constant()) {
      factor = apply(Op::kMul, factor, *constant);
    } else if (side->has_leading_factor()) {
      factor = apply(Op::kMul, factor, side->steps_[0].value);
      SizeExpr tail;
      tail.steps_.assign(side->steps_.begin() + 1, side->steps_.end() - 1);
      rest.push_back(std::move(tail));
    } else {
      rest.push_back(*side);
    }
  }
  const SizeExpr product = rest.size() == 1 ? rest[0] : join(Op::kMul, rest[0], rest[1]);
  return factor == 1 ? product : join(Op::kMul, SizeExpr(factor), product);
}

SizeExpr operator+(const SizeExpr& a, const SizeExpr& b) {
  return SizeExpr::combine(SizeExpr::Op::kAdd, a, b);
}
SizeExpr operator-(const SizeExpr& a, const SizeExpr& b) {
  return SizeExpr::combine(SizeExpr::Op::kSub, a, b);
}
SizeExpr operator*(const SizeExpr& a, const SizeExpr& b) {
  return SizeExpr::combine(SizeExpr::Op::kMul, a, b);
}
SizeExpr floor_div(const SizeExpr& a, const SizeExpr& b) {
  return SizeExpr::combine(SizeExpr::Op::kFloorDiv, a, b);
}
SizeExpr mod(const SizeExpr& a, const SizeExpr& b) {
  return SizeExpr::combine(SizeExpr::Op::kMod, a, b);
}
SizeExpr power(const SizeExpr& a, const SizeExpr& b) {
  return SizeExpr::combine(SizeExpr::Op::kPower, a, b);
}
SizeExpr max(const SizeExpr& a, const SizeExpr& b) {
  return SizeExpr::combine(SizeExpr::Op::kMax, a, b);
}
SizeExpr min(const SizeExpr& a, const SizeExpr& b) {
  return SizeExpr::combine(SizeExpr::Op::kMin, a, b);
}

std::string SizeExpr::text() const {
  struct Part {
    std::string text;
    int strength;  // sum 1, product 2, power 3, atom 4; a negative number is weaker than all
  };
  const auto wrapped = [](const Part& part, int at_least) {
    return part.strength >= at_least ? part.text : "(" + part.text + ")";
  };
  std::vector<Part> stack;
  for (const Step& step : steps_) {
    if (step.op == Op::kConstant) {
      stack.push_back({std::to_string(step.value), step.value < 0 ? 0 : 4});
      continue;
    }
    if (step.op == Op::kBatch) {
      stack.push_back({"b", 4});
      continue;
    }
    const Part right = std::move(stack.back());
    stack.pop_back();
    Part& left = stack.back();
    if (step.op == Op::kMax || step.op == Op::kMin) {
      left = {(step.op == Op::kMax ? "max(" : "min(") + left.text + "," + right.text + ")", 4};
    } else if (step.op == Op::kPower) {
      left = {wrapped(left, 4) + "**" + wrapped(right, 4), 3};
    } else {
      const bool sum = step.op == Op::kAdd || step.op == Op::kSub;
      const char* const sign = step.op == Op::kAdd        ? "+"
                               : step.op == Op::kSub      ? "-"
                               : step.op == Op::kMul      ? "*"
                               : step.op == Op::kFloorDiv ? "//"
                                                          : "%";
      const int strength = sum ? 1 : 2;
      left = {wrapped(left, strength) + sign + wrapped(right, strength + 1), strength};
    }
  }
  return stack.back().text;
}

std::int64_t product_at(std::span<const SizeExpr> factors, BatchSize batch) {
  std::int64_t constant = 1;
  std::int64_t rest = 1;
  for (const SizeExpr& factor : factors) {
    std::int64_t& product = factor.constant() ? constant : rest;
    product = SizeExpr::apply(SizeExpr::Op::kMul, product, factor.at(batch));
  }
  return SizeExpr::apply(SizeExpr::Op::kMul, constant, rest);
}

SizeExpr parse_size_expr(std::string_view text) {
  return SizeParser(text).parse();
}

}  // namespace espalier
