#include "espalier/frontend/zip.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(zip) {
  return accepts_or_refuses(data, size, [](std::string_view text) {
    const ZipReader reader(text, "f");
    std::size_t bytes = 0;
    for (const ZipReader::Entry& entry : reader.entries()) bytes += reader.get(entry.name).size();
    if (bytes > text.size()) std::abort();  // entries overlap
  });
}
