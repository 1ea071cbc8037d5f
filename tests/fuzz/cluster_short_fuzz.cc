#include "espalier/base/json.h"
#include "espalier/cluster/json.h"
#include "espalier/cluster/text.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(cluster_short) {
  return accepts_or_refuses(
      data, size, [](std::string_view text) { return parse_cluster(text); },
      [](const Cluster& cluster) {
        require(parse_cluster_lines(print_cluster(cluster)) == cluster);
        require(cluster_from_json(cluster_to_json(cluster), "f") == cluster);
      });
}
