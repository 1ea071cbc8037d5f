#include "espalier/base/json.h"
#include "espalier/sim/task_graph_json.h"
#include "espalier/sim/task_graph_text.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(task_graph_json) {
  return accepts_or_refuses(
      data, size, [](std::string_view text) { return task_graph_from_json(parse_json(text, "f"), "f"); },
      [](const TaskGraph& graph) {
        check_task_graph(graph);
        require(task_graph_from_json(task_graph_to_json(graph), "f") == graph);
      });
}
