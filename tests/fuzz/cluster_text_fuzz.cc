#include "espalier/cluster/text.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return accepts_or_refuses(data, size, [](std::string_view text) {
    const Cluster cluster = parse_cluster_lines(text);
    if (!(parse_cluster_lines(print_cluster(cluster)) == cluster)) std::abort();
  });
}
