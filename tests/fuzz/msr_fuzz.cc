#include "tests/fuzz/check_imported.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(msr) {
  accepts_or_refuses(
      data, size,
      [](std::string_view text) {
        Imported model = import_msr(text, "f");
        try {
          model.placement =
              import_msr_placement(R"({"fpgas": [{"nodes": [1]}], "cpus": [{"nodes": [2, 3]}]})", "p",
                                   model.graph, *model.cluster);
        } catch (const InputError&) {  // it fits few models
        }
        return model;
      },
      check_imported);
  return accepts_or_refuses(
      data, size, [](std::string_view text) { return import_msr(text, "f", {.repair = Repair::kLiteral}); },
      check_imported);
}
