#include "espalier/base/json.h"
#include "espalier/graph/json.h"
#include "espalier/graph/text.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(graph_json) {
  return accepts_or_refuses(
      data, size, [](std::string_view text) { return graph_from_json(parse_json(text, "f"), "f"); },
      [](const Graph& graph) {
        require(parse_graph(print_graph(graph)) == graph);
        require(graph_from_json(graph_to_json(graph), "f") == graph);
      });
}
