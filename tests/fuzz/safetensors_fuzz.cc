#include "espalier/base/safetensors.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(safetensors) {
  return accepts_or_refuses(data, size, [](std::string_view text) {
    const SafetensorsReader reader(text, "f");
    std::size_t bytes = 0;
    for (const auto& entry : reader.entries()) bytes += entry.data.size();
    if (bytes > text.size()) std::abort();
  });
}
