#include "espalier/plan/checkpoint_manifest.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(checkpoint) {
  return accepts_or_refuses(
      data, size, [](std::string_view text) { return parse_checkpoint(text, "f"); },
      [](const CheckpointManifest& manifest) {
        require(parse_checkpoint(print_checkpoint(manifest), "f") == manifest);
      });
}
