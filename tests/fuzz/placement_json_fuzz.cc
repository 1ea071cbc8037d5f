#include "espalier/base/json.h"
#include "espalier/graph/text.h"
#include "espalier/plan/json.h"
#include "espalier/plan/text.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(placement_json) {
  static const Graph kGraph = parse_graph(
      "batch 1..64\nx = input() : f32[b,4]\nw = parameter(w) : f32[4,4]\na = linear(x, w) : f32[b,4]\n"
      "c = relu(a)\n\"d e\" = gather(c)\nloss = mean(\"d e\") : f32[]\n");
  static const Cluster kCluster = parse_cluster("4xV100-16GB");
  return accepts_or_refuses(
      data, size,
      [](std::string_view text) { return placement_from_json(parse_json(text, "f"), "f", kGraph, kCluster); },
      [](const Placement& placement) {
        check_placement(kGraph, kCluster, placement);
        require(placement_from_json(placement_to_json(placement, kGraph, kCluster), "f", kGraph, kCluster) ==
                placement);
      });
}
