#include "espalier/graph/text.h"
#include "espalier/plan/text.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(plan_text) {
  static const Graph kGraph = parse_graph(
      "batch 1..64\nx = input() : f32[b,4]\nw = parameter(w) : f32[4,4]\nm = mask(x) : i64[b] @duplicable\n"
      "a = linear(x, w) : f32[b,4]\nc = relu(a)\n\"d e\" = gather(c, m)\nloss = mean(\"d e\") : f32[]\n");
  static const Cluster kCluster = parse_cluster("4xV100-16GB");
  accepts_or_refuses(
      data, size, [](std::string_view text) { return parse_placement(text, kGraph, kCluster); },
      [](const Placement& placement) {
        check_placement(kGraph, kCluster, placement);
        require(parse_placement(print_placement(placement, kGraph, kCluster), kGraph, kCluster) == placement);
      });
  return accepts_or_refuses(
      data, size, [](std::string_view text) { return parse_plan(text, kGraph, kCluster); },
      [](const PipelinePlan& plan) {
        check_plan(kGraph, kCluster, plan);
        require(parse_plan(print_plan(plan, kGraph, kCluster), kGraph, kCluster) == plan);
      });
}
