#include "espalier/graph/text.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return accepts_or_refuses(data, size, [](std::string_view text) {
    const Graph graph = parse_graph(text);
    if (!(parse_graph(print_graph(graph)) == graph)) std::abort();
  });
}
