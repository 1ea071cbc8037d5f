#include "tests/fuzz/check_imported.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(doppler) {
  return accepts_or_refuses(
      data, size, [](std::string_view text) { return import_doppler(text, "f"); }, check_imported);
}
