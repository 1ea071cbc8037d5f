#include "espalier/frontend/srepr.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t length) {
  return accepts_or_refuses(data, length, [](std::string_view text) {
    srepr_symbols(text);
    const SizeExpr size = parse_srepr(text, "s0");
    size.at(BatchSize(7));
    if (size.text().size() < 4000 && !(parse_size_expr(size.text()) == size)) std::abort();
  });
}
