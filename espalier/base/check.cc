#include "espalier/base/check.h"

#include <utility>

namespace espalier {
namespace {

std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return text;
}

}  // namespace

InputError::InputError(std::string text) : std::runtime_error(one_line(std::move(text))) {}

}  // namespace espalier

namespace espalier::internal {

void check_failed(const char* file, int line, const char* expression, const char* names,
                  const std::string& values) {
  std::ostringstream out;
  out << file << ":" << line << ": check failed: " << expression;
  if (!values.empty()) out << " with (" << names << ") = (" << values << ")";
  throw InternalError(out.str());
}

}  // namespace espalier::internal
