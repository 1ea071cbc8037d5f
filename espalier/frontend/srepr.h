#pragma once

// Sizes as torch.export writes them: SymPy's `srepr` of an integer expression, such as
// "Add(Integer(1), FloorDiv(Mul(Integer(6), Symbol('s52', positive=True, integer=True)), Integer(2)))".

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/graph/size_expr.h"

namespace espalier {

// The expression with `batch_symbol` as the batch. Throws InputError naming the function, the symbol or the
// place that is wrong; length (64 KiB) and depth (100) are bounded. Fractions that cancel are exact.
SizeExpr parse_srepr(std::string_view text, std::string_view batch_symbol);

// The names of the symbols in a text, each once, in order of appearance. Does not check the rest of it.
std::vector<std::string> srepr_symbols(std::string_view text);

}  // namespace espalier
