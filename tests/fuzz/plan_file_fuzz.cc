#include "espalier/plan/plan_file.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(plan_file) {
  return accepts_or_refuses(
      data, size, [](std::string_view text) { return parse_plan_file(text, "f"); },
      [](const PlanFile& file) { require(parse_plan_file(print_plan_file(file), "f") == file); });
}
