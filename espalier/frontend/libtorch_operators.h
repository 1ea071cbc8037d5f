#pragma once

// Which operators libtorch has, for builds without it.

#include <string_view>

namespace espalier {

// Whether libtorch itself registers an operator, "aten::linear" (without overload). Those of other libraries
// and of Python packages are not among them.
bool in_libtorch(std::string_view target);

}  // namespace espalier
