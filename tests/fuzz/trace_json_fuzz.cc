#include "espalier/base/json.h"
#include "espalier/trace/json.h"
#include "espalier/trace/trace.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(trace_json) {
  return accepts_or_refuses(
      data, size, [](std::string_view text) { return trace_from_json(parse_json(text, "f"), "f"); },
      [](const Trace& trace) {
        require(parse_trace(print_trace(trace)) == trace);
        require(trace_from_json(trace_to_json(trace), "f") == trace);
        peak_memory(trace);
        bubble_ratio(trace);
      });
}
