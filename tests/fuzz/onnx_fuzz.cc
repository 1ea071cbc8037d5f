#include "tests/fuzz/check_imported.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(onnx) {
  return accepts_or_refuses(
      data, size, [](std::string_view bytes) { return import_onnx(bytes, "f"); }, check_imported);
}
