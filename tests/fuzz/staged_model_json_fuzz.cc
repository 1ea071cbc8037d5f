#include "espalier/base/json.h"
#include "espalier/plan/json.h"
#include "espalier/plan/text.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(staged_model_json) {
  static const Cluster kCluster = parse_cluster("1xA100-80GB+1xV100-16GB");
  return accepts_or_refuses(
      data, size,
      [](std::string_view text) { return staged_model_from_json(parse_json(text, "f"), "f", kCluster); },
      [](const StagedModel& model) {
        check_staged_model(model, kCluster);
        require(staged_model_from_json(staged_model_to_json(model, kCluster), "f", kCluster) == model);
      });
}
