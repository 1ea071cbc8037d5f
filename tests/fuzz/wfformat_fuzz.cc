#include "tests/fuzz/check_imported.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(wfformat) {
  return accepts_or_refuses(
      data, size, [](std::string_view text) { return import_wfformat(text, "f"); }, check_imported);
}
