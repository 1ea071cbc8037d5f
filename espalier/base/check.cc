#include "espalier/base/check.h"

namespace espalier::internal {

void check_failed(const char* file, int line, const char* expression, const char* names,
                  const std::string& values) {
  std::ostringstream out;
  out << file << ":" << line << ": check failed: " << expression;
  if (!values.empty()) out << " with (" << names << ") = (" << values << ")";
  throw InternalError(out.str());
}

}  // namespace espalier::internal
