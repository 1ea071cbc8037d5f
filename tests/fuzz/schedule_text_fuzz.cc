#include "espalier/schedule/schedule.h"
#include "tests/fuzz/chain_of_two.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(schedule_text) {
  static const Cluster kCluster = parse_cluster("2xV100-16GB");
  static const StagedModel kModel = chain_of_two();
  return accepts_or_refuses(
      data, size, [](std::string_view text) { return parse_schedule(text, kModel, kCluster); },
      [](const Schedule& schedule) {
        check_schedule(kModel, schedule);
        require(parse_schedule(print_schedule(kModel, kCluster, schedule), kModel, kCluster) == schedule);
      });
}
