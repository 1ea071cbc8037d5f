#include "espalier/plan/placement_rules.h"

#include "espalier/graph/text.h"
#include "espalier/plan/fragments.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

// A placement file of any form, and the fragments of what it says.
ESPALIER_FUZZ_TARGET(placement_rules) {
  static const Graph kGraph = parse_graph(
      "batch 1..64\nx = input() : f32[b,4]\nw = parameter(w) : f32[4,4]\nm = mask(x) : i64[b] @duplicable\n"
      "a = linear(x, w) : f32[b,4] @module=enc.0\nc = relu_(a) @inplace @module=enc.1\n"
      "\"d e\" = gather(c, m) @module=dec\nloss = mean(\"d e\") : f32[]\n");
  static const Cluster kCluster = parse_cluster("4xV100-16GB");
  accepts_or_refuses(
      data, size, [](std::string_view text) { return parse_placement_rules(text, "f", kCluster); },
      [](const std::vector<PlacementRule>& rules) {
        require(parse_placement_rules(print_placement_rules(rules, kCluster), "f", kCluster) == rules);
      });
  return accepts_or_refuses(
      data, size, [](std::string_view text) { return parse_placement_file(text, "f", kGraph, kCluster); },
      [](const PlacedByRules& placed) {
        require(check_placement(kGraph, kCluster, placed.placement).empty());
        const PipelinePlan plan = fragments_of(kGraph, placed.placement, BatchSize(8));
        require(check_fragments(kGraph, kCluster, placed.placement, plan).empty());
      });
}
