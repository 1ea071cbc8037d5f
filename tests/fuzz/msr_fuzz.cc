#include "espalier/frontend/imported.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return accepts_or_refuses(data, size, [](std::string_view text) {
    const Imported model = import_msr(text, "f");
    import_msr(text, "f", {.repair = Repair::kLiteral});
    import_msr_placement(R"({"fpgas": [{"nodes": [1]}], "cpus": [{"nodes": [2, 3]}]})", "p", model);
  });
}
