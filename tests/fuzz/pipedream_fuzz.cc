#include "tests/fuzz/check_imported.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(pipedream) {
  accepts_or_refuses(
      data, size, [](std::string_view text) { return import_pipedream(text, "f"); }, check_imported);
  return accepts_or_refuses(
      data, size,
      [](std::string_view text) { return import_pipedream(text, "f", {.repair = Repair::kLiteral}); },
      check_imported);
}
