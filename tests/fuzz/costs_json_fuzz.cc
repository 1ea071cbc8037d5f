#include "espalier/base/json.h"
#include "espalier/cost/json.h"
#include "espalier/cost/text.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(costs_json) {
  return accepts_or_refuses(
      data, size, [](std::string_view text) { return costs_from_json(parse_json(text, "f"), "f"); },
      [](const CostTable& costs) {
        require(parse_costs(print_costs(costs)) == costs);
        require(costs_from_json(costs_to_json(costs), "f") == costs);
      });
}
