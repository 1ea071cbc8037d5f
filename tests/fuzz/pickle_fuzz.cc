#include "espalier/frontend/sample_inputs.h"

#include "espalier/frontend/archive_for_tests.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(pickle) {
  return accepts_or_refuses(data, size, [](std::string_view text) {
    // The pickle within the archive of samples that torch writes.
    const std::string archive =
        make_zip({{"data.pkl", std::string(text)}, {"data/0", std::string(64, 1)}}, "archive/");
    read_sample_ranges(archive, "f");
  });
}
