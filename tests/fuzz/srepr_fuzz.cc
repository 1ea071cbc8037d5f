#include "espalier/frontend/srepr.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(srepr) {
  return accepts_or_refuses(
      data, size,
      [](std::string_view text) {
        srepr_symbols(text);
        SizeExpr expression = parse_srepr(text, "s0");
        expression.at(BatchSize(7));
        return expression;
      },
      [](const SizeExpr& expression) {
        const std::string text = expression.text();
        if (text.size() < 4000) require(parse_size_expr(text) == expression);
      });
}
