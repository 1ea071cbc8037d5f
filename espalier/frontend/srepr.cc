#include "espalier/frontend/srepr.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "espalier/base/check.h"

namespace espalier {
namespace {

constexpr std::size_t kMaxLength = 1 << 16;
constexpr std::size_t kMaxSteps = 2000;
constexpr int kMaxNesting = 100;

// SymPy writes b/2 + 1/2 for (b + 1)/2: parts of an integer need not be integers. So values are fractions
// while an expression is read, and one division stands at the end.
struct Fraction {
  SizeExpr numerator;
  SizeExpr denominator{1};

  SizeExpr floor() const {
    return denominator.constant() == 1 ? numerator : floor_div(numerator, denominator);
  }
};

Fraction add(const Fraction& a, const Fraction& b) {
  if (a.denominator == b.denominator) return {a.numerator + b.numerator, a.denominator};
  return {a.numerator * b.denominator + b.numerator * a.denominator, a.denominator * b.denominator};
}

Fraction multiply(const Fraction& a, const Fraction& b) {
  return {a.numerator * b.numerator, a.denominator * b.denominator};
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view batch) : text_(text), batch_(batch) {
    if (text.size() > kMaxLength) fail("is longer than " + std::to_string(kMaxLength) + " characters");
  }

  SizeExpr parse() {
    const Fraction result = expression(0);
    skip_spaces();
    if (at_ != text_.size()) fail("goes on after its end");
    return result.floor();
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    std::string shown(text_.substr(0, 120));
    for (char& c : shown) c = static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    throw InputError("size \"" + shown + "\" " + problem + " (character " + std::to_string(at_) + ")");
  }
  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool accept(char c) {
    skip_spaces();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(std::string("has no '") + c + "' where one is due");
  }
  std::string_view word() {
    skip_spaces();
    const std::size_t begin = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '_')) {
      ++at_;
    }
    return text_.substr(begin, at_ - begin);
  }
  std::int64_t integer() {
    skip_spaces();
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc() || value > (std::int64_t{1} << 62) || value < -(std::int64_t{1} << 62)) {
      fail("has no whole number up to 2^62 where one is due");
    }
    at_ = static_cast<std::size_t>(end - text_.data());
    return value;
  }

  Fraction symbol() {  // behind "Symbol("
    expect('\'');
    const std::size_t end = text_.find('\'', at_);
    if (end == std::string_view::npos) fail("has a name without its closing quote");
    const std::string_view name = text_.substr(at_, end - at_);
    if (name != batch_ || name.empty()) {
      fail("depends on '" + std::string(name.substr(0, 40)) + "', which is not the batch");
    }
    at_ = end + 1;
    while (accept(',')) {  // assumptions: positive=True
      if (word().empty()) fail("has no assumption behind a comma");
      expect('=');
      if (word().empty()) fail("has an assumption without value");
    }
    expect(')');
    return {SizeExpr::batch()};
  }

  std::vector<Fraction> arguments(int depth) {
    std::vector<Fraction> result;
    do {
      result.push_back(expression(depth + 1));
    } while (accept(','));
    expect(')');
    return result;
  }

  Fraction expression(int depth) {
    if (depth > kMaxNesting) fail("is nested deeper than " + std::to_string(kMaxNesting) + " levels");
    const std::string name(word());
    if (name.empty()) fail("has no function or number where one is due");
    expect('(');
    if (name == "Symbol") return symbol();
    if (name == "Integer") {
      const std::int64_t value = integer();
      expect(')');
      return {value};
    }
    if (name == "Rational") {
      const std::int64_t numerator = integer();
      expect(',');
      const std::int64_t denominator = integer();
      expect(')');
      if (denominator <= 0) fail("has a fraction over " + std::to_string(denominator));
      return {numerator, denominator};
    }
    return apply(name, arguments(depth));
  }

  Fraction apply(const std::string& name, const std::vector<Fraction>& given) {
    if (++steps_ > kMaxSteps) fail("has more than " + std::to_string(kMaxSteps) + " operations");
    if (name == "Add" || name == "Mul" || name == "Max" || name == "Min") return fold(name, given);
    const auto expect_arguments = [&](std::size_t n) {
      if (given.size() != n) fail("gives " + name + " " + std::to_string(given.size()) + " arguments");
    };
    if (name == "floor" || name == "FloorToInt" || name == "TruncToInt" || name == "Identity" ||
        name == "ToFloat") {
      expect_arguments(1);
      return name == "Identity" || name == "ToFloat" ? given[0] : Fraction{given[0].floor()};
    }
    if (name == "ceiling" || name == "CeilToInt") {  // ⌈n/d⌉ = -⌊-n/d⌋
      expect_arguments(1);
      return {SizeExpr(0) - floor_div(SizeExpr(0) - given[0].numerator, given[0].denominator)};
    }
    if (name == "ModularIndexing") {  // (a // b) mod c
      expect_arguments(3);
      return {mod(floor_div(given[0].floor(), given[1].floor()), given[2].floor())};
    }
    const std::string_view known[] = {"FloorDiv",  "CleanDiv", "IntTrueDiv",  "Mod",
                                      "PythonMod", "Pow",      "PowByNatural"};
    if (std::find(std::begin(known), std::end(known), name) == std::end(known)) {
      fail("uses " + name.substr(0, 40) + ", which is not supported");
    }
    expect_arguments(2);
    const Fraction &a = given[0], &b = given[1];
    if (name == "FloorDiv") {
      return {floor_div(a.numerator * b.denominator, a.denominator * b.numerator)};
    }
    if (name == "CleanDiv" || name == "IntTrueDiv") {
      return {a.numerator * b.denominator, a.denominator * b.numerator};
    }
    if (name == "Mod" || name == "PythonMod") return {mod(a.floor(), b.floor())};
    return raise(a, b);
  }

  static Fraction fold(const std::string& name, const std::vector<Fraction>& given) {
    Fraction result = given[0];
    for (std::size_t i = 1; i < given.size(); ++i) {
      if (name == "Add") {
        result = add(result, given[i]);
      } else if (name == "Mul") {
        result = multiply(result, given[i]);
      } else {
        result = {name == "Max" ? max(result.floor(), given[i].floor())
                                : min(result.floor(), given[i].floor())};
      }
    }
    return result;
  }

  Fraction raise(const Fraction& base, const Fraction& exponent) {
    const std::optional<std::int64_t> n = exponent.floor().constant();
    if (!n) {
      if (base.denominator.constant() != 1) fail("raises a fraction to a power that varies");
      return {power(base.numerator, exponent.floor())};
    }
    if (*n < -64 || *n > 64) fail("has the power " + std::to_string(*n));
    const SizeExpr size(*n < 0 ? -*n : *n);
    const auto to = [&](const SizeExpr& x) {
      return x.constant() == 1 ? x : size == SizeExpr(1) ? x : power(x, size);
    };
    return *n < 0 ? Fraction{to(base.denominator), to(base.numerator)}
                  : Fraction{to(base.numerator), to(base.denominator)};
  }

  std::string_view text_;
  std::string_view batch_;
  std::size_t at_ = 0;
  std::size_t steps_ = 0;
};

}  // namespace

SizeExpr parse_srepr(std::string_view text, std::string_view batch_symbol) {
  return Parser(text, batch_symbol).parse();
}

std::vector<std::string> srepr_symbols(std::string_view text) {
  constexpr std::string_view kStart = "Symbol('";
  std::vector<std::string> result;
  for (std::size_t at = text.find(kStart); at != std::string_view::npos; at = text.find(kStart, at)) {
    at += kStart.size();
    const std::size_t end = text.find('\'', at);
    if (end == std::string_view::npos) break;
    std::string name(text.substr(at, end - at));
    if (std::find(result.begin(), result.end(), name) == result.end()) result.push_back(std::move(name));
    at = end;
  }
  return result;
}

}  // namespace espalier
