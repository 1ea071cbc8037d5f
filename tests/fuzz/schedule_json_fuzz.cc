#include "espalier/base/json.h"
#include "espalier/schedule/json.h"
#include "tests/fuzz/chain_of_two.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(schedule_json) {
  static const Cluster kCluster = parse_cluster("2xV100-16GB");
  static const StagedModel kModel = chain_of_two();
  return accepts_or_refuses(
      data, size,
      [](std::string_view text) { return schedule_from_json(parse_json(text, "f"), "f", kModel, kCluster); },
      [](const Schedule& schedule) {
        check_schedule(kModel, schedule);
        const Json json = schedule_to_json(kModel, kCluster, schedule);
        require(schedule_from_json(json, "f", kModel, kCluster) == schedule);
      });
}
